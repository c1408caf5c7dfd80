"""llama-server's routes for texts: ``POST /completion`` and ``POST /infill``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.llama_server import (
    InfillRequest,
    LlamaAnswer,
    LlamaProbability,
    LlamaRequest,
    LlamaTimings,
)
from quire.protocol.openai.completion import CompletionRequest
from quire.server.compat import llama_properties
from quire.server.compat.base import CompatAnswer, CompatEndpoint
from quire.server.compat.infill import InfillPrompt
from quire.server.compat.line_limits import LineLimits
from quire.server.generation.generation_outputs import Outputs
from quire.server.generation.large_answers import written
from quire.server.generation.model_routes import ByModel
from quire.server.generation.prompts.completion_prompt import prepare_completion
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import read_any_type
from quire.server.http.http_errors import ApiError
from quire.server.http.sse import LLAMA_EVENTS
from quire.server.openai.logprobs import TokenNames, entries
from quire.text.offloading import INLINE_CHARACTERS, run_by_size
from quire.text.tokenizers.fim_tokens import FimTokens

T = TypeVar("T", bound=LlamaRequest)
#: No request has one here.
NO_SLOT = -1
#: Fields that are no settings.
_TEXTS = ("prompt", "model", "input_prefix", "input_suffix", "input_extra")


class LlamaEndpoint(CompatEndpoint[T]):
    """The ASGI app of one of the two routes, for one model."""

    id_prefix = "llama"
    form = LLAMA_EVENTS
    read = staticmethod(read_any_type)

    def outputs(self, request: ApiRequest[T], submission: Submission) -> Outputs:
        outputs, limits = super().outputs(request, submission), request.body.line_limits()
        return outputs if limits is None else LineLimits(*limits).apply(outputs)

    async def our_request(self, request: ApiRequest[T]) -> CompletionRequest:
        """Return the completion request that has the same text.

        Raises:
            RequestError: The fields ask for something that this server cannot do.
        """
        tokenizer, body = self.service.engine.tokenizer, request.body
        ours = await run_by_size(
            INLINE_CHARACTERS if body.logit_bias else 0,  # texts, which may be long
            request.client.client_id,
            lambda: body.completion_request(lambda text: tokenizer.encode(text, False)),
        )
        if body.line_limits() is not None and len(body.prompts()) > 1:
            rule = "must be one where n_indent or t_max_predict_ms ends the text"
            raise RequestError(f"[prompt] {rule}; got {len(body.prompts())}.", "prompt")
        return ours


class Llama(LlamaEndpoint[LlamaRequest]):
    """``POST /completion``."""

    kind = LlamaRequest

    async def prepare(self, request: ApiRequest[LlamaRequest]) -> tuple[LlamaTexts, Submission]:
        body = request.body
        if request.stream and len(body.prompts()) > 1:
            raise RequestError(
                f"[prompt] must be one for a stream; got {len(body.prompts())}.", "prompt"
            )
        completion = request.with_body(await self.our_request(request))
        submission, texts = await prepare_completion(self.service, completion)
        return LlamaTexts(self.service, request, texts), submission


class Infill(LlamaEndpoint[InfillRequest]):
    """``POST /infill``."""

    kind = InfillRequest

    async def prepare(self, request: ApiRequest[InfillRequest]) -> tuple[LlamaTexts, Submission]:
        service, body = self.service, request.body
        engine = service.engine
        tokens = FimTokens.find(engine.tokenizer)
        if tokens.missing:
            missing = "".join(f" {kind} token is missing." for kind in tokens.missing)
            raise ApiError(501, f"Infill is not supported by this model:{missing}")
        ours = await self.our_request(request)
        longest = engine.max_model_len
        client_id = request.client.client_id
        prompt = await InfillPrompt.encode(engine.tokenizer, tokens, body, longest, client_id)
        room = longest - (ours.max_tokens or longest // 4)
        token_ids, truncated = prompt.fit(room)
        ours = msgspec.structs.replace(ours, prompt=token_ids, stop_token_ids=tokens.ends or None)
        submission, _ = await prepare_completion(service, request.with_body(ours))
        tokenizer = engine.tokenizer
        text = await run_by_size(
            len(token_ids),
            client_id,
            lambda: tokenizer.decode(token_ids, skip_special_tokens=False),
        )
        return LlamaTexts(service, request, [text], truncated), submission


class LlamaTexts(CompatAnswer):
    """Formats one answer.

    Args:
        service: The served model.
        request: The request that is answered.
        prompts: The prompts as text.
        truncated: Whether parts of the request are left out of the prompts.
    """

    form = LLAMA_EVENTS

    def __init__(
        self,
        service: Service,
        request: ApiRequest[Any],
        prompts: list[str],
        truncated: bool = False,
    ) -> None:
        self._body: LlamaRequest = request.body
        self._truncated = truncated
        self._model = request.model
        self._prompts = prompts
        self._names = TokenNames(service.engine.tokenizer, False)
        self._num_tokens = 0
        self._has_new_line = False

    def whole(self, outputs: list[RequestOutput]) -> Any:
        answers: list[LlamaAnswer | dict[str, Any]] = []
        for index, output in enumerate(outputs):
            (completion,) = output.outputs
            self._num_tokens, self._has_new_line = 0, False
            answer = self._piece(output, completion, index, bool(self._body.return_tokens))
            answers.append(self._asked(self._ended(answer, output, completion)))
        return answers if len(answers) > 1 else answers[0]

    def pieces(
        self, output: RequestOutput, completion: CompletionOutput
    ) -> Iterator[LlamaAnswer | dict[str, Any]]:
        answer = self._piece(output, completion, 0, True)
        if answer.content or answer.tokens:
            yield answer
        if output.finished:
            last = msgspec.structs.replace(
                answer, content="", tokens=[], completion_probabilities=UNSET
            )
            yield self._asked(self._ended(last, output, completion))

    def _asked(self, answer: LlamaAnswer) -> LlamaAnswer | dict[str, Any]:
        """Return what ``response_fields`` names of an answer: ``a/b`` is the part b of a."""
        if not self._body.response_fields:
            return answer
        known, found = msgspec.to_builtins(answer), {}
        for path in self._body.response_fields:
            value: Any = known
            for name in path.split("/"):
                value = value.get(name, UNSET) if isinstance(value, dict) else UNSET
            if value is not UNSET:
                found[path] = value
        return found

    def _piece(
        self, output: RequestOutput, completion: CompletionOutput, index: int, with_tokens: bool
    ) -> LlamaAnswer:
        """Return what a delta adds, as an event that is not the last."""
        if self._body.output_limit == 0:
            completion = CompletionOutput(completion.index, logprobs=[])
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
        written_as = entries(self._names, token_ids, positions, num_top)
        found = []
        for token_id, position, entry in zip(token_ids, positions, written_as, strict=True):
            ranked = sorted(position, key=lambda other: position[other].rank)
            probability = LlamaProbability(
                id=token_id,
                token=entry.token,
                bytes=entry.bytes,
                logprob=entry.logprob,
                top_logprobs=[
                    LlamaProbability(id=i, token=x.token, bytes=x.bytes, logprob=x.logprob)
                    for i, x in zip(ranked, entry.top_logprobs, strict=False)
                ],
            )
            found.append(written(probability))
        return found

    def _ended(
        self, answer: LlamaAnswer, output: RequestOutput, completion: CompletionOutput
    ) -> LlamaAnswer:
        """Return ``answer`` with what only the end has."""
        reason, word = completion.finish_reason, completion.stop_reason
        stop_type = "limit" if reason == "length" or self._body.output_limit == 0 else "none"
        if reason == "stop" and stop_type == "none":
            stop_type = "word" if isinstance(word, str) else "eos"
        return msgspec.structs.replace(
            answer,
            stop=True,
            model=self._model,
            prompt=self._prompts[answer.index],
            generation_settings=self._settings(),
            has_new_line=self._has_new_line,
            truncated=self._truncated,
            stop_type=stop_type,
            stopping_word=word if isinstance(word, str) else "",
            tokens_cached=len(output.prompt_token_ids) + self._num_tokens,
            timings=self._timings(output),
        )

    def _settings(self) -> dict[str, Any]:
        """Return the settings that the request gave."""
        body = self._body
        names = zip(body.__struct_encode_fields__, body.__struct_fields__, strict=True)
        given = {sent: getattr(body, name) for sent, name in names if sent not in _TEXTS}
        return {name: value for name, value in given.items() if value is not None}

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
    completion = ByModel(models, Llama)
    return [
        Route("/completion", completion, methods=["POST"]),
        Route("/completions", completion, methods=["POST"]),
        Route("/infill", ByModel(models, Infill), methods=["POST"]),
        *llama_properties.routes(models),
    ]
