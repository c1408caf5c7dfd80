"""llama-server's routes: ``POST /completion``, ``GET /props`` and ``GET /slots``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.core.errors import RequestError
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.llama_server import LlamaAnswer, LlamaProbability, LlamaRequest, LlamaTimings
from quire.server.compat.base import CompatAnswer, CompatEndpoint
from quire.server.generation.by_model import ByModel, Models, get_route
from quire.server.generation.completion_prompt import prepare_completion
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import json_response, read_any_type
from quire.server.http.errors import ApiError
from quire.server.http.sse import LLAMA_EVENTS
from quire.server.openai.logprobs import TokenNames, chat_logprobs

#: No request has one here.
NO_SLOT = -1


class Llama(CompatEndpoint[LlamaRequest]):
    """The ASGI app of the route."""

    kind = LlamaRequest
    id_prefix = "llama"
    form = LLAMA_EVENTS
    read = staticmethod(read_any_type)

    async def prepare(self, request: ApiRequest[LlamaRequest]) -> tuple[LlamaTexts, Submission]:
        body = request.body
        if request.stream and len(body.prompts()) > 1:
            raise RequestError(
                f"[prompt] must be one for a stream; got {len(body.prompts())}.", "prompt"
            )
        completion = request.with_body(body.completion_request())
        submission, texts = await prepare_completion(self.service, completion)
        return LlamaTexts(self.service, request, texts), submission


class LlamaTexts(CompatAnswer):
    """Formats one answer.

    Args:
        service: The served model.
        request: What is answered.
        prompts: As text.
    """

    form = LLAMA_EVENTS

    def __init__(
        self, service: Service, request: ApiRequest[LlamaRequest], prompts: list[str]
    ) -> None:
        self._body = request.body
        self._model = request.model
        self._prompts = prompts
        self._names = TokenNames(service.engine.tokenizer, False)
        self._num_tokens = 0
        self._has_new_line = False

    def whole(self, outputs: list[RequestOutput]) -> LlamaAnswer | list[LlamaAnswer]:
        answers = []
        for index, output in enumerate(outputs):
            (completion,) = output.outputs
            self._num_tokens, self._has_new_line = 0, False
            answer = self._piece(output, completion, index, bool(self._body.return_tokens))
            answers.append(self._ended(answer, output, completion))
        return answers if len(answers) > 1 else answers[0]

    def pieces(self, output: RequestOutput, completion: CompletionOutput) -> Iterator[LlamaAnswer]:
        answer = self._piece(output, completion, 0, True)
        if completion.text or completion.token_ids:
            yield answer
        if output.finished:
            last = msgspec.structs.replace(
                answer, content="", tokens=[], completion_probabilities=UNSET
            )
            yield self._ended(last, output, completion)

    def _piece(
        self, output: RequestOutput, completion: CompletionOutput, index: int, with_tokens: bool
    ) -> LlamaAnswer:
        """Return what a delta adds, as an event that is not the last."""
        self._num_tokens += len(completion.token_ids)
        self._has_new_line |= "\n" in completion.text
        answer = LlamaAnswer(
            index=index,
            content=completion.text,
            tokens=list(completion.token_ids) if with_tokens else [],
            stop=False,
            id_slot=NO_SLOT,
            tokens_predicted=self._num_tokens,
            tokens_evaluated=len(output.prompt_token_ids),
        )
        if self._body.n_probs:
            answer.completion_probabilities = self._probabilities(completion)
        if self._body.timings_per_token:
            answer.timings = self._timings(output)
        return answer

    def _probabilities(self, completion: CompletionOutput) -> list[LlamaProbability]:
        num_top, token_ids = self._body.n_probs or 0, completion.token_ids
        positions = completion.logprobs or []
        entries = chat_logprobs(self._names, token_ids, positions, num_top).content
        found = []
        for token_id, position, entry in zip(token_ids, positions, entries, strict=True):
            ranked = sorted(position, key=lambda other: position[other].rank)
            found.append(
                LlamaProbability(
                    id=token_id,
                    token=entry.token,
                    bytes=entry.bytes,
                    logprob=entry.logprob,
                    top_logprobs=[
                        LlamaProbability(id=i, token=x.token, bytes=x.bytes, logprob=x.logprob)
                        for i, x in zip(ranked, entry.top_logprobs, strict=False)
                    ],
                )
            )
        return found

    def _ended(
        self, answer: LlamaAnswer, output: RequestOutput, completion: CompletionOutput
    ) -> LlamaAnswer:
        """Return ``answer`` with what only the end has."""
        reason, word = completion.finish_reason, completion.stop_reason
        stop_type = "limit" if reason == "length" else "none"
        if reason == "stop":
            stop_type = "word" if isinstance(word, str) else "eos"
        return msgspec.structs.replace(
            answer,
            stop=True,
            model=self._model,
            prompt=self._prompts[answer.index],
            generation_settings=self._settings(),
            has_new_line=self._has_new_line,
            truncated=False,
            stop_type=stop_type,
            stopping_word=word if isinstance(word, str) else "",
            tokens_cached=len(output.prompt_token_ids) + self._num_tokens,
            timings=self._timings(output),
        )

    def _settings(self) -> dict[str, Any]:
        """Return the settings that the request gave."""
        given = msgspec.structs.asdict(self._body)
        return {
            name: value
            for name, value in given.items()
            if value is not None and name not in ("prompt", "model")
        }

    def _timings(self, output: RequestOutput) -> LlamaTimings:
        times, prompt_ms, predicted_ms = output.metrics, 0.0, 0.0
        if times.first_token_time:
            prompt_ms = 1000 * (times.first_token_time - times.first_scheduled_time)
            predicted_ms = 1000 * (times.last_token_time - times.first_token_time)
        prompt_n = len(output.prompt_token_ids) - output.num_cached_tokens
        return LlamaTimings(
            cache_n=output.num_cached_tokens,
            prompt_n=prompt_n,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=prompt_ms / max(prompt_n, 1),
            prompt_per_second=_rate(prompt_n, prompt_ms),
            predicted_n=self._num_tokens,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=predicted_ms / max(self._num_tokens, 1),
            predicted_per_second=_rate(self._num_tokens, predicted_ms),
        )


def _rate(count: int, milliseconds: float) -> float:
    return 1000 * count / milliseconds if milliseconds > 0 else 0.0


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def show_props(service: Service, request: Request) -> Response:
        return json_response(_props(service))

    async def show_slots(service: Service, request: Request) -> Response:
        slots = _slots(service)
        wanted = request.query_params.get("fail_on_no_slot", "0") not in ("", "0", "false")
        if wanted and all(slot["is_processing"] for slot in slots):
            raise ApiError(503, "No slot is free.", headers={"Retry-After": "1"})
        return json_response(slots)

    completion = ByModel(models, Llama)
    return [
        Route("/completion", completion, methods=["POST"]),
        Route("/completions", completion, methods=["POST"]),
        get_route(models, "/props", show_props),
        get_route(models, "/slots", show_slots),
    ]


def _props(service: Service) -> dict[str, Any]:
    engine, template = service.engine, service.engine.tokenizer.chat_template
    special = {} if template is None else template.special_tokens
    return {
        "default_generation_settings": {
            "n_ctx": engine.max_model_len,
            "params": engine.default_sampling_params,
        },
        "total_slots": service.config.scheduler.max_num_seqs,
        "model_alias": service.model_names[0],
        "model_path": service.config.model.model,
        "modalities": {"vision": False, "audio": False},
        "chat_template": "" if template is None else template.templates.get("default", ""),
        "bos_token": special.get("bos_token", ""),
        "eos_token": special.get("eos_token", ""),
        "build_info": f"quire-{quire.__version__}",
        "is_sleeping": False,
    }


def _slots(service: Service) -> list[dict[str, Any]]:
    """Return as many slots as requests may run at once; those that do come first."""
    running = service.engine.stats().get("num_requests_running", 0)
    return [
        {
            "id": index,
            "n_ctx": service.engine.max_model_len,
            "speculative": False,
            "is_processing": isinstance(running, int | float) and index < running,
        }
        for index in range(service.config.scheduler.max_num_seqs)
    ]
