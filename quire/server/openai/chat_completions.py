"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.openai.chat_completion import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
)
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.generation_outputs import Outputs, Tally
from quire.server.generation.prompts.chat_prompt import prepare_chat
from quire.server.generation.prompts.tool_use import AnswerReading
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.sse import ChunkWriter
from quire.server.openai.chat_choice import ChoiceFormatter
from quire.server.openai.logprobs import TokenNames, chat_logprobs, prompt_logprobs


class ChatCompletions(GenerationEndpoint[ChatCompletionRequest]):
    """The ASGI app of the route."""

    kind = ChatCompletionRequest
    id_prefix = "chatcmpl"

    async def prepare(
        self, request: ApiRequest[ChatCompletionRequest]
    ) -> tuple[ChatAnswer, Submission]:
        submission, reading, role = await prepare_chat(self.service, request)
        return ChatAnswer(self.service, request, role, reading), submission


class ChatAnswer:
    """Formats one answer, whole or streamed.

    Args:
        service: The served model.
        request: The request that is answered.
        role: Role of the generated message.
        reading: The rules by which the text is split into reasoning, content and tool calls.
    """

    def __init__(
        self,
        service: Service,
        request: ApiRequest[ChatCompletionRequest],
        role: str,
        reading: AnswerReading,
    ) -> None:
        self._body = body = request.body
        self._role = role
        self._reading = reading
        self._usage = service.usage_options(body.stream_options)
        kind = "chat.completion.chunk" if request.stream else "chat.completion"
        self._names = TokenNames(service.engine.tokenizer, bool(body.return_tokens_as_token_ids))
        self._identity = service.identity(request.response_id, kind, request.model)
        self._tally = Tally(reading)
        self._names_tokens = body.logprobs or body.return_token_ids or body.return_token_origins
        self._is_text_alone = not (self._names_tokens or self._usage.on_every_chunk)

    def whole(self, outputs: list[RequestOutput]) -> ChatCompletion:
        """Return the whole answer."""
        (final,) = outputs
        self._tally.add(0, final)
        body = self._body
        return ChatCompletion(
            **self._identity,
            choices=[self._choice(completion) for completion in final.outputs],
            usage=self._tally.usage(ended=True),
            prompt_token_ids=final.prompt_token_ids if body.return_token_ids else UNSET,
            prompt_logprobs=UNSET
            if body.prompt_logprobs is None
            else prompt_logprobs(self._names, final.prompt_logprobs or []),
        )

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        choice = self._begin_choice()
        message = choice.message(self._role, completion.text)
        return ChatChoice(
            index=completion.index,
            message=message,
            logprobs=self._logprobs(completion.token_ids, completion.logprobs or []),
            finish_reason=choice.finish_reason(completion.finish_reason),
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids if self._body.return_token_ids else UNSET,
            token_origins=UNSET if completion.token_origins is None else completion.token_origins,
            tool_call_errors=choice.errors or UNSET,
        )

    def _begin_choice(self) -> ChoiceFormatter:
        return ChoiceFormatter(self._reading, self._body.shows_reasoning)

    def _logprobs(self, token_ids: list[int], positions: list[Any]) -> Any:
        num_top = self._body.num_logprobs
        if num_top is None:
            return None
        return chat_logprobs(self._names, token_ids, positions, num_top)

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events up to the usage; the caller ends it."""
        writer = ChunkWriter(self._identity, "delta")
        choices = [self._begin_choice() for _ in range(self._body.n or 1)]
        begun = False
        async with aclosing(outputs):
            async for _, output in outputs:
                self._tally.add(0, output)
                parts = []
                if not begun:
                    begun = True
                    parts += self._first_chunks(writer, output, len(choices))
                for completion in output.outputs:
                    parts += self._next_chunks(writer, choices[completion.index], completion)
                if parts:
                    yield b"".join(parts)
        if self._usage.at_end:
            yield writer.last(self._tally.usage(ended=True))

    def _first_chunks(
        self, writer: ChunkWriter, output: RequestOutput, num_choices: int
    ) -> list[bytes]:
        delta = b'{"role":%b,"content":""}' % msgspec.json.encode(self._role)
        top_level = self._usage_field()
        if self._body.return_token_ids:
            top_level = {"prompt_token_ids": output.prompt_token_ids, **(top_level or {})}
        return [writer.chunk(i, delta, top_level=top_level) for i in range(num_choices)]

    def _next_chunks(
        self, writer: ChunkWriter, choice: ChoiceFormatter, completion: CompletionOutput
    ) -> list[bytes]:
        finished, token_ids = completion.finish_reason is not None, completion.token_ids
        contents = choice.deltas(completion.text, finished)
        if self._is_text_alone and not finished:  # nearly always
            return [writer.chunk(completion.index, content) for content in contents]
        wanted = token_ids and self._names_tokens
        if not (contents or wanted or finished):
            return []
        extra: dict[str, Any] = {}
        if self._body.return_token_ids:
            extra["token_ids"] = token_ids
        if completion.token_origins is not None:
            extra["token_origins"] = completion.token_origins
        chunks = []
        logprobs = self._logprobs(token_ids, completion.logprobs or [])
        for number, content in enumerate(contents or [b"{}"], start=1):
            reason = None
            if finished and number >= len(contents):
                reason = choice.finish_reason(completion.finish_reason)
                extra["stop_reason"] = completion.stop_reason
                if choice.errors:
                    extra["tool_call_errors"] = choice.errors
            chunks.append(
                writer.chunk(
                    completion.index,
                    content,
                    logprobs=logprobs,
                    finish_reason=reason,
                    extra=extra,
                    top_level=self._usage_field(),
                )
            )
            # Tokens come with the first of the chunks that they made.
            logprobs, extra = None, {}
        return chunks

    def _usage_field(self) -> dict[str, Any] | None:
        return {"usage": self._tally.usage()} if self._usage.on_every_chunk else None
