"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.openai.completion import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.generation_outputs import Outputs, Tally
from quire.server.generation.large_answers import empty, write_by_size
from quire.server.generation.prompts.completion_prompt import prepare_completion
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.sse import ChunkWriter
from quire.server.openai.logprobs import (
    CompletionLogprobWriter,
    Position,
    TokenNames,
    prompt_logprobs,
)


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
    """One choice that is not complete.

    Attributes:
        prompt_text: The prompt's text, sent first when it is echoed.
        writer: The writer of the choice's log-probabilities.
        started: Whether the echo has been sent.
    """

    prompt_text: str
    writer: CompletionLogprobWriter
    started: bool = False


class CompletionAnswer:
    """Formats one answer, whole or streamed; choice ``i * n + j`` is text j of prompt i.

    Args:
        service: The served model.
        request: The request that is answered.
        texts: The prompts as text, for the echo.
    """

    def __init__(
        self, service: Service, request: ApiRequest[CompletionRequest], texts: list[str]
    ) -> None:
        self._body = body = request.body
        self._client_id = request.client.client_id
        self._n = body.n or 1
        self._names_tokens = (
            body.logprobs is not None or body.return_token_ids or body.return_token_origins
        )
        self._usage = service.usage_options(body.stream_options)
        self._names = TokenNames(service.engine.tokenizer, bool(body.return_tokens_as_token_ids))
        self._identity = service.identity(request.response_id, "text_completion", request.model)
        self._skip_special_tokens = body.skip_special_tokens is not False
        self._texts = texts
        self._states: dict[int, ChoiceState] = {}
        self._prompt_logprobs: list[list[Position | None]] = [[] for _ in texts]
        self._tally = Tally()

    def whole(self, outputs: list[RequestOutput]) -> Completion:
        """Return the whole answer; what it is made of is freed on the way, prompt by prompt."""
        choices: list[CompletionChoice] = []
        for index, whole in enumerate(outputs):
            output = self._add(index, whole)
            choices += [self._choice(index, output, one) for one in output.outputs]
            empty(self._prompt_logprobs[index])
            self._states.clear()
        return Completion(**self._identity, choices=choices, usage=self._tally.usage())

    def _choice(
        self, prompt_index: int, output: RequestOutput, completion: CompletionOutput
    ) -> CompletionChoice:
        body = self._body
        text, logprobs = self._format(prompt_index, output, completion)
        return CompletionChoice(
            index=prompt_index * self._n + completion.index,
            text=text,
            logprobs=logprobs,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids if body.return_token_ids else UNSET,
            token_origins=UNSET if completion.token_origins is None else completion.token_origins,
            prompt_token_ids=output.prompt_token_ids if body.return_token_ids else UNSET,
            prompt_logprobs=UNSET
            if body.prompt_logprobs is None
            else prompt_logprobs(self._names, self._prompt_logprobs[prompt_index]),
        )

    def _state(self, prompt_index: int, completion: CompletionOutput) -> ChoiceState:
        """Return the state of a choice, made at its first use: a body may ask for 131,072."""
        index = prompt_index * self._n + completion.index
        state = self._states.get(index)
        if state is None:
            writer = CompletionLogprobWriter(self._names, self._skip_special_tokens)
            state = self._states[index] = ChoiceState(self._texts[prompt_index], writer)
        return state

    def _add(self, prompt_index: int, output: RequestOutput) -> RequestOutput:
        """Count a delta; return it, or without its token when none was asked for."""
        self._prompt_logprobs[prompt_index] += output.prompt_logprobs or []
        output.prompt_logprobs = None
        if self._body.max_tokens == 0:
            nothing = [
                CompletionOutput(completion.index, finish_reason="length")
                for completion in output.outputs
            ]
            output = replace(output, outputs=nothing)
        self._tally.add(prompt_index, output)
        return output

    def _format(
        self, prompt_index: int, output: RequestOutput, completion: CompletionOutput
    ) -> tuple[str, CompletionLogprobs | None]:
        """Return a delta's text and log-probabilities, the first time with the echo in front."""
        body, state = self._body, self._state(prompt_index, completion)
        text, token_ids = completion.text, completion.token_ids
        positions: list[Position | None] = [*(completion.logprobs or [])]
        if body.echo and not state.started:
            text = state.prompt_text + text
            token_ids = output.prompt_token_ids + token_ids
            positions = self._prompt_logprobs[prompt_index] + positions
        state.started = True
        return text, None if body.logprobs is None else state.writer.write(token_ids, positions)

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events up to the usage; the caller ends it."""
        writer = ChunkWriter(self._identity, "text")
        async with aclosing(outputs):
            async for prompt_index, delta in outputs:
                output = self._add(prompt_index, delta)
                write = partial(self._next_chunks, writer, prompt_index, output)
                chunks = await write_by_size(
                    self._echoed(prompt_index, output), self._client_id, write
                )
                if chunks:
                    yield chunks
        if self._usage.at_end:
            yield writer.last(self._tally.usage())

    def _echoed(self, prompt_index: int, output: RequestOutput) -> list[list[Position | None]]:
        """Return the prompt's log-probabilities for each choice that this delta begins."""
        if self._body.logprobs is None or not self._body.echo:
            return []
        states = [self._state(prompt_index, one) for one in output.outputs]
        return [self._prompt_logprobs[prompt_index] for state in states if not state.started]

    def _next_chunks(self, writer: ChunkWriter, prompt_index: int, output: RequestOutput) -> bytes:
        """Return the events of a delta; nothing when there is nothing to send."""
        chunks = (self._next_chunk(writer, prompt_index, output, one) for one in output.outputs)
        return b"".join(chunks)

    def _next_chunk(
        self,
        writer: ChunkWriter,
        prompt_index: int,
        output: RequestOutput,
        completion: CompletionOutput,
    ) -> bytes:
        """Return the event of a delta; nothing when there is nothing to send."""
        body, index = self._body, prompt_index * self._n + completion.index
        first = not self._state(prompt_index, completion).started
        finished = completion.finish_reason is not None
        text, logprobs = self._format(prompt_index, output, completion)
        wanted = completion.token_ids and self._names_tokens
        if not (text or wanted or finished):
            return b""
        extra: dict[str, Any] = {}
        if finished:
            extra["stop_reason"] = completion.stop_reason
        if body.return_token_ids:
            extra["token_ids"] = completion.token_ids
            if first:
                extra["prompt_token_ids"] = output.prompt_token_ids
        if completion.token_origins is not None:
            extra["token_origins"] = completion.token_origins
        return writer.chunk(
            index,
            msgspec.json.encode(text),
            logprobs=logprobs,
            finish_reason=completion.finish_reason,
            extra=extra,
            top_level={"usage": self._tally.usage()} if self._usage.on_every_chunk else None,
        )
