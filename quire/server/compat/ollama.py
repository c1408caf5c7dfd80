"""Ollama's routes for texts and vectors: ``/api/generate``, ``/api/chat``, ``/api/embed``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.core.errors import PromptTooLongError
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.llama_server import InfillRequest
from quire.protocol.ollama.ollama import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaFunction,
    OllamaGenerateRequest,
    OllamaRequest,
    OllamaToolCall,
    read_keep_alive,
)
from quire.protocol.openai.chat_completion import ChatCompletionRequest, ChosenTokenLogprob
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.openai.embedding import EmbeddingRequest
from quire.protocol.prompt_list import read_prompts
from quire.server.access.authentication import ApiKey, client_of, may_operate
from quire.server.compat.base import CompatAnswer, CompatEndpoint
from quire.server.compat.infill import InfillPrompt
from quire.server.compat.ollama_models import stamp
from quire.server.compat.ollama_names import OllamaNames
from quire.server.generation.answer_parser import (
    AnswerParser,
    ParsedAnswer,
    arguments_error,
    call_id,
)
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.model_routes import ByModel
from quire.server.generation.prompts.chat_prompt import prepare_chat
from quire.server.generation.prompts.completion_prompt import prepare_completion
from quire.server.generation.prompts.tokenized_prompts import MARK_CHARACTERS, encode_beginnings
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import JsonRequest, json_response, read_any_type, read_fields_in_turn
from quire.server.http.http_errors import ApiError
from quire.server.http.sse import LINES
from quire.server.openai.embeddings import Embeddings, PooledAnswer
from quire.server.openai.logprobs import TokenNames, chat_logprobs
from quire.text.offloading import run_by_size
from quire.text.tokenizers.fim_tokens import FimTokens

T = TypeVar("T", bound=OllamaGenerateRequest | OllamaChatRequest)
_NANOSECONDS = 10**9


class Ollama(CompatEndpoint[T]):
    """The ASGI app of one of the routes for texts, for one model.

    Args:
        service: The served model.
        kind: Struct of the requests.
        param: The requests' field that holds the prompt.
    """

    id_prefix = "ollama"
    form = LINES
    read = staticmethod(read_any_type)

    def __init__(self, service: Service, kind: type[T], param: str) -> None:
        super().__init__(service)
        self.kind = kind
        self._param = param

    def unused_fields(self, body: T) -> list[str]:
        return [*super().unused_fields(body), *_unused(self.service, body)]

    def answer_at_once(self, request: ApiRequest[T]) -> OllamaAnswer | None:
        """Load the model, or unload it at once, for a request without a prompt."""
        seconds = read_keep_alive(request.body.keep_alive)
        goes = request.body.only_loads and self.service.residence is not None and seconds == 0
        if goes and not may_operate(request.api_key):
            raise ApiError(
                403,
                "[keep_alive] 0 without a prompt unloads the model and needs a key with the scope "
                "admin; got another. Leave it out.",
            )
        _keep(self.service, seconds, request.api_key)
        if not request.body.only_loads:
            return None
        return OllamaTexts(self.service, request, None).loaded("unload" if goes else "load")

    async def prepare(self, request: ApiRequest[T]) -> tuple[OllamaTexts, Submission]:
        service, body = self.service, request.body
        ours = await run_by_size(
            MARK_CHARACTERS * body.num_messages,
            request.client.client_id,
            lambda: body.our_request(service.pictures is not None),
        )
        if not isinstance(ours, ChatCompletionRequest):
            if body.text_after:
                ours = await self._filled_in(request, ours)
            completion = request.with_body(ours)
            submission, _ = await prepare_completion(service, completion, self._param)
            return OllamaTexts(service, request, None), submission
        if body.think and service.formats.reasoning is None:
            message = f'[think] "{request.model}" does not support thinking.'
            raise ApiError(400, message, param="think")
        submission, reading, _ = await prepare_chat(service, request.with_body(ours), self._param)
        return OllamaTexts(service, request, reading.create_parser()), submission

    async def _filled_in(
        self, request: ApiRequest[T], ours: CompletionRequest
    ) -> CompletionRequest:
        """Put what is to follow the answer into a request that has only what comes before it."""
        engine = self.service.engine
        tokens = FimTokens.find(engine.tokenizer)
        if tokens.missing:
            message = f'[suffix] "{request.model}" does not support insert.'
            raise ApiError(400, message, param="suffix")
        after, longest = request.body.text_after, engine.max_model_len
        texts = InfillRequest(input_prefix=str(ours.prompt), input_suffix=after)
        prompt = await InfillPrompt.encode(
            engine.tokenizer, tokens, texts, longest, request.client.client_id, named=False
        )
        # Nothing is left out: what is too long is refused, here or with all other prompts.
        if prompt.is_cut:
            raise PromptTooLongError(
                f"This model's maximum context length is {longest} tokens. However, prompt and "
                f"suffix have {len(texts.input_prefix) + len(after)} characters. Please reduce "
                "the length of the prompt.",
                "prompt",
            )
        token_ids, _ = prompt.fit(prompt.num_tokens)
        return msgspec.structs.replace(ours, prompt=token_ids, stop_token_ids=tokens.ends or None)


class OllamaTexts(CompatAnswer):
    """Formats one answer.

    Args:
        service: The served model.
        request: The request that is answered.
        parser: The parser of reasoning and tool calls; None leaves the text as it is.
    """

    form = LINES

    def __init__(
        self,
        service: Service,
        request: ApiRequest[Any],
        parser: AnswerParser | None,
    ) -> None:
        body: OllamaGenerateRequest | OllamaChatRequest = request.body
        self._model = request.model
        self._in_message = isinstance(body, OllamaChatRequest)
        self._parser = parser
        self._names = TokenNames(service.engine.tokenizer, False)
        self._num_top = (body.top_logprobs or 0) if body.logprobs else None
        self._calls: list[list[str]] = []
        self._tool_parser = service.formats.tool_parser
        self._arrival = time.monotonic()
        self._num_tokens = 0

    def whole(self, outputs: list[RequestOutput]) -> OllamaAnswer:
        (output,) = outputs
        (completion,) = output.outputs
        answer = self._answer(completion, True)
        return msgspec.structs.replace(answer, **self._ending(output, completion))

    def pieces(self, output: RequestOutput, completion: CompletionOutput) -> Iterator[OllamaAnswer]:
        answer = self._answer(completion, output.finished)
        if answer != self._write(ParsedAnswer(), created_at=answer.created_at):
            yield answer
        if output.finished:
            last = self._write(ParsedAnswer())
            yield msgspec.structs.replace(last, **self._ending(output, completion))

    def loaded(self, reason: str) -> OllamaAnswer:
        """Return the answer to a request without a prompt; ``reason`` says what it did."""
        answer = self._write(ParsedAnswer())
        return msgspec.structs.replace(answer, done=True, done_reason=reason)

    def _answer(self, completion: CompletionOutput, final: bool) -> OllamaAnswer:
        """Return what a delta adds; calls are in the last, for their arguments are objects."""
        self._num_tokens += len(completion.token_ids)
        parsed = ParsedAnswer(content=completion.text)
        if self._parser is not None:
            parsed = self._parser.read(completion.text, final)
        for call in parsed.calls:
            if call.name is not None:
                self._calls.append([call.name, ""])
            self._calls[call.index][1] += call.arguments
        answer = self._write(parsed)
        answer.logprobs = self._logprobs(completion) or UNSET
        if final and self._parser is not None and answer.message is not UNSET:
            calls, errors = self._made_calls(self._parser.broken)
            answer.message.tool_calls = calls or UNSET
            answer.message.tool_call_errors = [*self._parser.errors, *errors] or UNSET
        return answer

    def _made_calls(self, broken: set[int]) -> tuple[list[OllamaToolCall], list[str]]:
        """Return the calls, and what is wrong with those whose arguments no object can hold."""
        made, errors = [], []
        for index, (name, text) in enumerate(self._calls):
            if index in broken:
                continue
            try:
                arguments = msgspec.json.decode(text or "{}", type=dict[str, Any])
            except (msgspec.MsgspecError, RecursionError) as error:
                errors.append(arguments_error(index, str(error)))
                continue
            function = OllamaFunction(index=index, name=name, arguments=arguments)
            made.append(OllamaToolCall(function=function, id=call_id(self._tool_parser)))
        return made, errors

    def _logprobs(self, completion: CompletionOutput) -> list[ChosenTokenLogprob]:
        if self._num_top is None:
            return []
        positions = completion.logprobs or []
        return chat_logprobs(self._names, completion.token_ids, positions, self._num_top).content

    def _write(self, parsed: ParsedAnswer, created_at: str | None = None) -> OllamaAnswer:
        answer = _nothing(self._model, self._in_message, created_at)
        thinking = parsed.reasoning or UNSET
        if answer.message is not UNSET:
            answer.message.content, answer.message.thinking = parsed.content, thinking
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


class OllamaEmbed(GenerationEndpoint[OllamaEmbedRequest]):
    """The ASGI app of one of the routes for vectors, for one model.

    Args:
        service: The served model.
        only_one: Whether the route is ``/api/embeddings``, whose answer is one vector.
    """

    kind = OllamaEmbedRequest
    id_prefix = "ollama"
    read = staticmethod(read_any_type)

    def __init__(self, service: Service, only_one: bool) -> None:
        super().__init__(service)
        self._only_one = only_one

    def unused_fields(self, body: OllamaEmbedRequest) -> list[str]:
        return [*super().unused_fields(body), *_unused(self.service, body)]

    def answer_at_once(self, request: ApiRequest[OllamaEmbedRequest]) -> dict[str, Any] | None:
        """Answer a request without a text at once: there is no vector to compute."""
        _keep(self.service, read_keep_alive(request.body.keep_alive), request.api_key)
        if request.body.texts():
            return None
        return {"embedding": []} if self._only_one else _vectors(request.model, [], 0.0, 0)

    async def prepare(
        self, request: ApiRequest[OllamaEmbedRequest]
    ) -> tuple[PooledAnswer, Submission]:
        body, engine = request.body, self.service.engine
        texts: list[Any] = [*body.texts()]
        given: list[Any] = read_prompts(texts, "input")
        if body.truncate is not False:
            longest, client_id = engine.max_model_len, request.client.client_id
            given = await encode_beginnings(engine.tokenizer, given, longest, client_id)
        ours = request.with_body(EmbeddingRequest(input=given, dimensions=body.dimensions))
        answer, submission = await Embeddings(self.service).prepare(ours)
        arrival = time.monotonic()

        def write(outputs: list[RequestOutput]) -> dict[str, Any]:
            ours = answer.whole(outputs)
            vectors = [item.embedding for item in ours.data]
            if self._only_one:
                return {"embedding": vectors[0]}
            seconds = time.monotonic() - arrival
            return _vectors(ours.model, vectors, seconds, ours.usage.prompt_tokens)

        return PooledAnswer(write), submission


def _nothing(model: str, in_message: bool, created_at: str | None = None) -> OllamaAnswer:
    """Return an answer without text, in a message or not."""
    answer = OllamaAnswer(model=model, created_at=created_at or stamp(time.time()))
    if in_message:
        answer.message = OllamaAnswerMessage(role="assistant", content="")
    else:
        answer.response = ""
    return answer


def _vectors(model: str, vectors: list[Any], seconds: float, num_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "embeddings": vectors,
        "total_duration": _nanoseconds(seconds),
        "load_duration": 0,
        "prompt_eval_count": num_tokens,
    }


def _keep(service: Service, seconds: float | None, api_key: ApiKey | None) -> None:
    """Keep the model in memory as long as a request says, as far as its key permits."""
    if seconds is not None and service.residence is not None:
        service.residence.keep(seconds, by_operator=may_operate(api_key))


def _unused(service: Service, body: OllamaRequest | OllamaEmbedRequest) -> list[str]:
    """Return the fields that do nothing for a model that stays as long as the server."""
    stays = service.residence is None
    return ["keep_alive"] if stays and body.keep_alive is not None else []


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANOSECONDS))


class OllamaByModel:
    """The ASGI app of a route for texts: a request that only unloads a model never loads it.

    Args:
        models: The server's models.
        kind: Struct of the requests.
        param: The requests' field that holds the prompt.
    """

    def __init__(
        self,
        models: Models,
        kind: type[OllamaGenerateRequest] | type[OllamaChatRequest],
        param: str,
    ) -> None:
        self._models = models
        self._kind = kind
        self._param = param

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that goes away ends it."""
        received = await Ollama.read(scope, receive, send)
        response = await self._unloaded(received)
        if response is not None:
            await received.answer(response)
            return
        async with self._models.lease(received.model, receive) as service:
            await Ollama(service, self._kind, self._param).respond(received)

    async def _unloaded(self, received: JsonRequest) -> Response | None:
        """Return the answer to a request to unload a model that is not loaded, else None."""
        name = received.model
        if not name or "keep_alive" not in received.fields:
            return None
        strict = self._models.shared.options.strict_params
        client_id = client_of(received.http.scope.get("api_key")).client_id
        body, headers = await read_fields_in_turn(client_id, received.fields, self._kind, strict)
        if not body.only_loads or read_keep_alive(body.keep_alive) != 0:
            return None
        if (await self._models.look_up(name)).state in ("ready", "loading"):
            return None
        answer = _nothing(name, self._kind is OllamaChatRequest)
        answer.done, answer.done_reason = True, "unload"
        return json_response(answer, headers)


def routes(models: Models) -> list[Route]:
    """Return the routes."""
    models = OllamaNames(models)
    generate = OllamaByModel(models, OllamaGenerateRequest, "prompt")
    chat = OllamaByModel(models, OllamaChatRequest, "messages")
    return [
        Route("/api/generate", generate, methods=["POST"]),
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/embed", ByModel(models, OllamaEmbed, False), methods=["POST"]),
        Route("/api/embeddings", ByModel(models, OllamaEmbed, True), methods=["POST"]),
    ]
