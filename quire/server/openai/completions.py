"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.completion import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from quire.server.generation.completion_prompt import prepare_completion
from quire.server.generation.deltas import Delta, Sent, Tally, json_text
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.generate import Outputs
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.sse import ChunkWriter
from quire.server.openai.logprobs import CompletionLogprobWriter, TokenNames, prompt_logprobs


class Completions(GenerationEndpoint[CompletionRequest]):
    """The ASGI app of the route."""

    kind = CompletionRequest
    id_prefix = "cmpl"

    async def prepare(
        self, request: ApiRequest[CompletionRequest]
    ) -> tuple[CompletionAnswer, Submission]:
        submission, texts = await prepare_completion(self.service, request)
        return CompletionAnswer(self.service, request, texts), submission


@dataclass(slots=True)
class ChoiceState:
    """One choice under way.

    Attributes:
        prompt_text: Sent first when the prompt is echoed.
        sent: What the client has.
        writer: Of its log-probabilities.
        started: Whether the echo is out.
    """

    prompt_text: str
    writer: CompletionLogprobWriter
    sent: Sent = field(default_factory=Sent)
    started: bool = False


class CompletionAnswer:
    """Formats one answer, whole or streamed; choice ``i * n + j`` is text j of prompt i.

    Args:
        service: The served model.
        request: What is answered.
        texts: The prompts as text, for the echo.
    """

    def __init__(
        self, service: Service, request: ApiRequest[CompletionRequest], texts: list[str]
    ) -> None:
        self._body = body = request.body
        self._n = body.n or 1
        self._usage = service.usage_options(body.stream_options)
        self._names = TokenNames(service.engine.tokenizer, bool(body.return_tokens_as_token_ids))
        self._identity = service.identity(request.response_id, "text_completion", request.model)
        skip = body.skip_special_tokens is not False
        self._states = [
            ChoiceState(text, CompletionLogprobWriter(self._names, skip))
            for text in texts
            for _ in range(self._n)
        ]
        self._tally = Tally()

    async def collect(self, outputs: Outputs) -> Completion:
        """Wait for the end and return the whole answer."""
        finals: dict[int, RequestOutput] = {}
        async with aclosing(outputs):
            async for index, output in outputs:
                finals[index] = output
        for index, output in finals.items():
            self._count(index, output)
        return Completion(
            **self._identity,
            choices=[
                self._choice(index, finals[index], completion)
                for index in sorted(finals)
                for completion in finals[index].outputs
            ],
            usage=self._tally.usage(),
        )

    def _choice(
        self, prompt_index: int, output: RequestOutput, completion: CompletionOutput
    ) -> CompletionChoice:
        body, index = self._body, prompt_index * self._n + completion.index
        delta, logprobs = self._take(self._states[index], output, completion)
        return CompletionChoice(
            index=index,
            text=delta.text,
            logprobs=logprobs,
            finish_reason=self._finish_reason(completion),
            stop_reason=completion.stop_reason,
            token_ids=delta.token_ids if body.return_token_ids else UNSET,
            prompt_token_ids=output.prompt_token_ids if body.return_token_ids else UNSET,
            prompt_logprobs=self._prompt_logprobs(output),
        )

    def _prompt_logprobs(self, output: RequestOutput) -> Any | UnsetType:
        if self._body.prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(self._names, output.prompt_logprobs or [])

    def _take(
        self, state: ChoiceState, output: RequestOutput, completion: CompletionOutput
    ) -> tuple[Delta, CompletionLogprobs | None]:
        """Return the news of a choice with their log-probabilities, the echo in front."""
        body = self._body
        delta = state.sent.take(completion)
        if body.max_tokens == 0:
            delta = Delta("", [], [])
        token_ids, positions = delta.token_ids, delta.logprobs
        if body.echo and not state.started:
            delta.text = state.prompt_text + delta.text
            token_ids = output.prompt_token_ids + token_ids
            positions = [*(output.prompt_logprobs or []), *positions]
        state.started = True
        if body.logprobs is None:
            return delta, None
        return delta, state.writer.write(token_ids, positions)

    def _count(self, prompt_index: int, output: RequestOutput) -> None:
        self._tally.count(prompt_index, output)
        if self._body.max_tokens == 0:
            self._tally.completion_tokens[prompt_index] = 0

    def _finish_reason(self, completion: CompletionOutput) -> str | None:
        return "length" if self._body.max_tokens == 0 else completion.finish_reason

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events up to the usage; the caller ends it."""
        writer = ChunkWriter(self._identity, "text")
        async with aclosing(outputs):
            async for prompt_index, output in outputs:
                self._count(prompt_index, output)
                parts = []
                for completion in output.outputs:
                    index = prompt_index * self._n + completion.index
                    chunk = self._next_chunk(writer, index, output, completion)
                    if chunk is not None:
                        parts.append(chunk)
                if parts:
                    yield b"".join(parts)
        if self._usage.at_end:
            yield writer.last(self._tally.usage())

    def _next_chunk(
        self, writer: ChunkWriter, index: int, output: RequestOutput, completion: CompletionOutput
    ) -> bytes | None:
        body, state = self._body, self._states[index]
        if state.sent.finished:
            return None
        first = not state.started
        delta, logprobs = self._take(state, output, completion)
        wanted = delta.token_ids and (body.logprobs is not None or body.return_token_ids)
        if not (delta.text or wanted or state.sent.finished):
            return None
        extra: dict[str, Any] = {}
        if state.sent.finished:
            extra["stop_reason"] = completion.stop_reason
        if body.return_token_ids:
            extra["token_ids"] = delta.token_ids
            if first:
                extra["prompt_token_ids"] = output.prompt_token_ids
        return writer.chunk(
            index,
            json_text(delta.text),
            logprobs=logprobs,
            finish_reason=self._finish_reason(completion),
            extra=extra,
            top_level={"usage": self._tally.usage()} if self._usage.on_every_chunk else None,
        )
