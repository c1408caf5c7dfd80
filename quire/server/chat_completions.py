"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.chat_completion import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
)
from quire.server.deltas import Sent, Tally, json_text
from quire.server.generation import Outputs, Submission, output_limit
from quire.server.generation_endpoint import GenerationEndpoint
from quire.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from quire.server.prompts import Conversation, encode_conversation
from quire.server.service import Service
from quire.server.sse import ChunkWriter


class ChatCompletions(GenerationEndpoint[ChatCompletionRequest]):
    """The ASGI app of the route."""

    kind = ChatCompletionRequest
    id_prefix = "chatcmpl"

    async def prepare(
        self, body: ChatCompletionRequest, response_id: str
    ) -> tuple[ChatAnswer, Submission]:
        service = self.service
        model = service.resolve_model(body.model)
        body.check()
        conversation = Conversation(
            body.messages,
            body.add_generation_prompt,
            body.continue_final_message,
            body.add_special_tokens,
            body.chat_template_kwargs,
        )
        token_ids = await encode_conversation(service.engine.tokenizer, conversation)
        limit = output_limit(service, body.output_limit, len(token_ids))
        defaults = service.engine.default_sampling_params
        submission = Submission(
            response_id=response_id,
            prompts=[token_ids],
            params=[body.sampling_params(defaults, limit, body.num_logprobs)],
            param="messages",
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
        )
        return ChatAnswer(service, body, response_id, model, conversation.role), submission


class ChatAnswer:
    """Formats one answer, whole or streamed.

    Args:
        service: The served model.
        body: The request.
        response_id: ``chatcmpl-...``.
        model: The name the client used.
        role: Of the generated message.
    """

    def __init__(
        self, service: Service, body: ChatCompletionRequest, response_id: str, model: str, role: str
    ) -> None:
        self._body = body
        self._role = role
        self._usage = service.usage_options(body.stream_options)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._names = TokenNames(service.engine.tokenizer, bool(body.return_tokens_as_token_ids))
        self._identity = service.identity(response_id, kind, model)
        self._tally = Tally()

    async def collect(self, outputs: Outputs) -> bytes:
        """Wait for the end and return the whole answer as JSON."""
        async with aclosing(outputs):
            async for _, output in outputs:
                final = output
        self._tally.count(0, final)
        body = self._body
        return msgspec.json.encode(
            ChatCompletion(
                **self._identity,
                choices=[self._choice(completion) for completion in final.outputs],
                usage=self._tally.usage(),
                prompt_token_ids=final.prompt_token_ids if body.return_token_ids else UNSET,
                prompt_logprobs=UNSET
                if body.prompt_logprobs is None
                else prompt_logprobs(self._names, final.prompt_logprobs or []),
            )
        )

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=completion.index,
            message=AnswerMessage(role=self._role, content=completion.text),
            logprobs=self._logprobs(completion.token_ids, completion.logprobs or []),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids if self._body.return_token_ids else UNSET,
        )

    def _logprobs(self, token_ids: list[int], positions: list[Any]) -> Any:
        num_top = self._body.num_logprobs
        if num_top is None:
            return None
        return chat_logprobs(self._names, token_ids, positions, num_top)

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events up to the usage; the caller ends it."""
        writer = ChunkWriter(self._identity, "delta")
        sent: list[Sent] = []
        async with aclosing(outputs):
            async for _, output in outputs:
                self._tally.count(0, output)
                parts = []
                if not sent:
                    sent = [Sent() for _ in output.outputs]
                    parts += self._first_chunks(writer, output)
                for completion in output.outputs:
                    chunk = self._next_chunk(writer, sent[completion.index], completion)
                    if chunk is not None:
                        parts.append(chunk)
                if parts:
                    yield b"".join(parts)
        if self._usage.at_end:
            yield writer.last(self._tally.usage())

    def _first_chunks(self, writer: ChunkWriter, output: RequestOutput) -> list[bytes]:
        delta = b'{"role":%b,"content":""}' % json_text(self._role)
        top_level = self._usage_field()
        if self._body.return_token_ids:
            top_level = {"prompt_token_ids": output.prompt_token_ids, **(top_level or {})}
        return [
            writer.chunk(completion.index, delta, top_level=top_level)
            for completion in output.outputs
        ]

    def _next_chunk(
        self, writer: ChunkWriter, sent: Sent, completion: CompletionOutput
    ) -> bytes | None:
        if sent.finished:
            return None
        delta = sent.take(completion)
        wanted = delta.token_ids and (self._body.logprobs or self._body.return_token_ids)
        if not (delta.text or wanted or sent.finished):
            return None
        extra: dict[str, Any] = {}
        if sent.finished:
            extra["stop_reason"] = completion.stop_reason
        if self._body.return_token_ids:
            extra["token_ids"] = delta.token_ids
        return writer.chunk(
            completion.index,
            b'{"content":%b}' % json_text(delta.text) if delta.text else b"{}",
            logprobs=self._logprobs(delta.token_ids, delta.logprobs),
            finish_reason=completion.finish_reason,
            extra=extra,
            top_level=self._usage_field(),
        )

    def _usage_field(self) -> dict[str, Any] | None:
        return {"usage": self._tally.usage()} if self._usage.on_every_chunk else None
