"""Ollama's routes: ``/api/generate`` and ``/api/chat``, ``/api/tags`` and ``/api/version``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.chat_completion import ChatCompletionRequest
from quire.protocol.ollama import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaChatRequest,
    OllamaGenerateRequest,
)
from quire.server.compat.base import CompatAnswer, CompatEndpoint
from quire.server.generation.answer_parser import AnswerParser, ParsedAnswer
from quire.server.generation.chat_prompt import prepare_chat
from quire.server.generation.completion_prompt import prepare_completion
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import json_response
from quire.server.http.errors import ApiError
from quire.server.http.sse import LINES

T = TypeVar("T", bound=OllamaGenerateRequest | OllamaChatRequest)
_TAG = ":latest"
_NANOSECONDS = 10**9


class Ollama(CompatEndpoint[T]):
    """The ASGI app of either route.

    Args:
        service: The served model.
        kind: Of the requests.
        param: Their field that holds the prompt.
    """

    id_prefix = "ollama"
    form = LINES

    def __init__(self, service: Service, kind: type[T], param: str) -> None:
        super().__init__(service)
        self.kind = kind
        self._param = param

    def resolve(self, body: T, path_params: Mapping[str, Any]) -> T:
        body, name = super().resolve(body, path_params), body.model or ""
        if name not in self.service.model_names:
            return msgspec.structs.replace(body, model=name.removesuffix(_TAG))
        return body

    async def prepare(self, request: ApiRequest[T]) -> tuple[OllamaTexts, Submission]:
        service, body, model = self.service, request.body, request.model
        ours = body.our_request()
        if not isinstance(ours, ChatCompletionRequest):
            completion = request.with_body(ours)
            submission, _ = await prepare_completion(service, completion, self._param)
            return OllamaTexts(model, None, False), submission
        if body.think and service.formats.reasoning is None:
            raise ApiError(400, f"[think] the model {model} does not think.", param="think")
        submission, reading, _ = await prepare_chat(service, request.with_body(ours), self._param)
        in_message = isinstance(body, OllamaChatRequest)
        return OllamaTexts(model, reading.create_parser(), in_message), submission


class OllamaTexts(CompatAnswer):
    """Formats one answer.

    Args:
        model: The served name.
        parser: Splits off the reasoning; None leaves the text as it is.
        in_message: The text stands in a message.
    """

    form = LINES

    def __init__(self, model: str, parser: AnswerParser | None, in_message: bool) -> None:
        self._model = model
        self._parser = parser
        self._in_message = in_message
        self._arrival = time.monotonic()
        self._num_tokens = 0

    def whole(self, outputs: list[RequestOutput]) -> OllamaAnswer:
        (output,) = outputs
        (completion,) = output.outputs
        self._num_tokens += len(completion.token_ids)
        answer = self._answer(self._parse(completion.text, True))
        return msgspec.structs.replace(answer, **self._ending(output, completion))

    def pieces(self, output: RequestOutput, completion: CompletionOutput) -> Iterator[OllamaAnswer]:
        self._num_tokens += len(completion.token_ids)
        parsed = self._parse(completion.text, output.finished)
        if parsed.content or parsed.reasoning:
            yield self._answer(parsed)
        if output.finished:
            last = self._answer(ParsedAnswer())
            yield msgspec.structs.replace(last, **self._ending(output, completion))

    def _parse(self, text: str, final: bool) -> ParsedAnswer:
        if self._parser is None:
            return ParsedAnswer(content=text)
        return self._parser.read(text, final)

    def _answer(self, parsed: ParsedAnswer) -> OllamaAnswer:
        answer = OllamaAnswer(model=self._model, created_at=_stamp(time.time()))
        thinking = parsed.reasoning or UNSET
        if self._in_message:
            answer.message = OllamaAnswerMessage(
                role="assistant", content=parsed.content, thinking=thinking
            )
        else:
            answer.response, answer.thinking = parsed.content, thinking
        return answer

    def _ending(self, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        """Return the fields that only the end has."""
        times, prompt_seconds, eval_seconds = output.metrics, 0.0, 0.0
        if times.first_token_time:
            prompt_seconds = times.first_token_time - times.first_scheduled_time
            eval_seconds = times.last_token_time - times.first_token_time
        return {
            "done": True,
            "done_reason": completion.finish_reason or "stop",
            "total_duration": _nanoseconds(time.monotonic() - self._arrival),
            "load_duration": 0,
            "prompt_eval_count": len(output.prompt_token_ids),
            "prompt_eval_duration": _nanoseconds(prompt_seconds),
            "eval_count": self._num_tokens,
            "eval_duration": _nanoseconds(eval_seconds),
        }


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANOSECONDS))


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def routes(service: Service) -> list[Route]:
    """Return the routes."""

    async def list_models(request: Request) -> Response:
        modified = _stamp(service.created)
        return json_response(
            {
                "models": [
                    {"name": name, "model": name, "modified_at": modified}
                    for name in service.model_names
                ]
            }
        )

    async def show_version(request: Request) -> Response:
        return json_response({"version": quire.__version__})

    generate = Ollama(service, OllamaGenerateRequest, "prompt")
    chat = Ollama(service, OllamaChatRequest, "messages")
    return [
        Route("/api/generate", generate, methods=["POST"]),
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/tags", list_models, methods=["GET"]),
        Route("/api/version", show_version, methods=["GET"]),
    ]
