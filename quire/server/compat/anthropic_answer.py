"""An answer in Anthropic's shape: content blocks as they grow, and the whole made of the same."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.anthropic.anthropic import (
    AnthropicMessage,
    AnthropicRequest,
    AnthropicUsage,
    OutputTokensDetails,
)
from quire.server.generation.answer_parser import (
    AnswerParser,
    ParsedAnswer,
    arguments_error,
    call_id,
)
from quire.server.generation.generation_outputs import Outputs, Tally
from quire.server.generation.prompts.tool_use import AnswerReading
from quire.server.generation.submission import ApiRequest
from quire.server.http.sse import ANTHROPIC_EVENTS

Event = dict[str, Any]
#: Clients want one on every thought, and send it back; nothing here is signed.
SIGNATURE = "unsigned"
#: By block: the delta that makes it grow, and the field of it that has more.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
#: Up to a character that may be the last of a call, whatever its format.
_PIECES = re.compile(r"[^\]}>]*[\]}>]|[^\]}>]+")
#: Fields of a block that a delta has whole, where the answer is.
_GROWING = ("text", "thinking", "signature")


class AnswerBlocks:
    """The content blocks of one answer; one is open at a time.

    Args:
        tool_parser: Format of the calls, which decides how their ids look.
        shows_thinking: Whether thoughts are sent; else their block stays empty.
    """

    def __init__(self, tool_parser: str | None, shows_thinking: bool) -> None:
        self._tool_parser = tool_parser
        self._shows_thinking = shows_thinking
        self._index = -1
        self._kind: str | None = None
        self._pieces: list[str] = []
        self._events: list[Event] = []
        #: By call: its block, and its arguments.
        self._calls: dict[int, tuple[int, list[str]]] = {}

    def read(self, parser: AnswerParser, text: str, final: bool) -> None:
        """Take the next piece of the text, the last when ``final``.

        Blocks follow each other in the order of the text, however it is cut: the parser gives a
        piece's text before its calls, so that no piece may continue after the end of a call.
        """
        for piece in [text] if self._tool_parser is None else _PIECES.findall(text):
            self._add(parser.read(piece, False))
        if final:
            self._add(parser.read("", True))
            self._end()

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        self._flush()
        events, self._events = self._events, []
        return events

    def inputs(self, broken: set[int]) -> tuple[dict[int, dict[str, Any]], list[str]]:
        """Return the arguments of the calls by block, and what is wrong with the other calls.

        Args:
            broken: Calls that the parser has found wrong.
        """
        found, errors = {}, []
        for call, (index, pieces) in self._calls.items():
            if call in broken:
                continue
            try:
                given = msgspec.json.decode("".join(pieces) or "{}", type=dict[str, Any])
            except (msgspec.MsgspecError, RecursionError) as error:
                errors.append(arguments_error(call, str(error)))
            else:
                found[index] = given
        return found, errors

    def _add(self, parsed: ParsedAnswer) -> None:
        for kind, text in (("thinking", parsed.reasoning), ("text", parsed.content)):
            if not text:
                continue
            if self._kind != kind:
                empty = {"signature": ""} if kind == "thinking" else {}
                self._begin({"type": kind, kind: "", **empty})
            if kind == "text" or self._shows_thinking:
                self._pieces.append(text)
        for call in parsed.calls:
            if call.name is not None:
                made = call_id(self._tool_parser, "toolu_")
                self._begin({"type": "tool_use", "id": made, "name": call.name, "input": {}})
                self._calls[call.index] = self._index, []
            if call.arguments:
                self._pieces.append(call.arguments)
                self._calls[call.index][1].append(call.arguments)

    def _end(self) -> None:
        if self._kind is None:
            return
        self._flush()
        if self._kind == "thinking":
            self._delta({"type": "signature_delta", "signature": SIGNATURE})
        self._events.append({"type": "content_block_stop", "index": self._index})
        self._kind = None

    def _begin(self, block: dict[str, Any]) -> None:
        self._end()
        self._index += 1
        self._kind = block["type"]
        self._events.append(
            {"type": "content_block_start", "index": self._index, "content_block": block}
        )

    def _flush(self) -> None:
        if self._pieces:
            delta, field = _DELTAS[self._kind or ""]
            self._delta({"type": delta, field: "".join(self._pieces)})
            self._pieces = []

    def _delta(self, delta: dict[str, str]) -> None:
        event = {"type": "content_block_delta", "index": self._index, "delta": delta}
        self._events.append(event)


def content_of(events: Iterable[Event], inputs: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the content blocks that events describe.

    Args:
        events: The events of a whole answer, with one delta of each kind in a block.
        inputs: Arguments of the calls by block; a call without valid ones is left out.
    """
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        index = event["index"]
        if event["type"] == "content_block_start":
            blocks[index] = event["content_block"]
        elif event["type"] == "content_block_delta":
            grown = event["delta"].items()
            blocks[index] |= {name: value for name, value in grown if name in _GROWING}
    for index, block in [*blocks.items()]:
        if block["type"] == "tool_use":
            if index in inputs:
                block["input"] = inputs[index]
            else:
                del blocks[index]
    return list(blocks.values())


class AnthropicAnswer:
    """Formats one answer, whole or streamed.

    Args:
        request: The request that is answered.
        reading: The rules by which the text is split into reasoning, content and tool calls.
        clamped: Whether the context ends before ``max_tokens`` are reached.
    """

    def __init__(
        self, request: ApiRequest[AnthropicRequest], reading: AnswerReading, clamped: bool
    ) -> None:
        thinking = request.body.thinking
        shows_thinking = thinking is None or thinking.display != "omitted"
        self._id = request.response_id.replace("-", "_", 1)
        self._model = request.model
        self._clamped = clamped
        self._tally = Tally(reading)
        self._parser = reading.create_parser()
        self._blocks = AnswerBlocks(reading.tool_parser, shows_thinking)

    def whole(self, outputs: list[RequestOutput]) -> AnthropicMessage:
        """Return the whole answer."""
        (final,) = outputs
        (completion,) = final.outputs
        self._tally.add(0, final)
        self._blocks.read(self._parser, completion.text, True)
        inputs, reason, errors = self._ending(completion)
        return AnthropicMessage(
            id=self._id,
            model=self._model,
            content=content_of(self._blocks.take(), inputs),
            stop_reason=reason,
            stop_sequence=_stop_sequence(completion),
            usage=self._usage(ended=True),
            tool_call_errors=errors or UNSET,
        )

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events."""
        begun = False
        async with aclosing(outputs):
            async for _, output in outputs:
                self._tally.add(0, output)
                events = [] if begun else [self._start()]
                begun = True
                for completion in output.outputs:
                    self._blocks.read(self._parser, completion.text, output.finished)
                    events += self._blocks.take()
                    if output.finished:
                        events += self._end(completion)
                if events:
                    yield b"".join(map(_written, events))

    def _ending(
        self, completion: CompletionOutput
    ) -> tuple[dict[int, dict[str, Any]], str, list[str]]:
        """Return the calls' arguments by block, why the answer ended, and what is wrong."""
        inputs, errors = self._blocks.inputs(self._parser.broken)
        return inputs, self._reason(completion, bool(inputs)), [*self._parser.errors, *errors]

    def _reason(self, completion: CompletionOutput, calls: bool) -> str:
        reason = completion.finish_reason
        if reason == "length":
            return "model_context_window_exceeded" if self._clamped else "max_tokens"
        if reason == "timeout":  # sent back as it is, it goes on
            return "pause_turn"
        if _stop_sequence(completion) is not None:
            return "stop_sequence"
        return "tool_use" if calls else "end_turn"

    def _start(self) -> Event:
        message = AnthropicMessage(
            id=self._id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(ended=False),
        )
        return {"type": "message_start", "message": message}

    def _end(self, completion: CompletionOutput) -> list[Event]:
        _, reason, errors = self._ending(completion)
        delta = {"stop_reason": reason, "stop_sequence": _stop_sequence(completion)}
        last: Event = {"type": "message_delta", "delta": delta, "usage": self._usage(ended=True)}
        if errors:
            last["tool_call_errors"] = errors
        return [last, {"type": "message_stop"}]

    def _usage(self, ended: bool) -> AnthropicUsage:
        counts = self._tally.usage(ended=ended)
        cached = counts.prompt_tokens_details.cached_tokens
        details = counts.completion_tokens_details
        return AnthropicUsage(
            input_tokens=counts.prompt_tokens - cached,
            output_tokens=counts.completion_tokens,
            cache_read_input_tokens=cached,
            cache_creation_input_tokens=0,
            output_tokens_details=None
            if details is UNSET
            else OutputTokensDetails(details.reasoning_tokens),
        )


def _stop_sequence(completion: CompletionOutput) -> str | None:
    """Return the stop sequence that ended an answer."""
    reason = completion.stop_reason
    return reason if isinstance(reason, str) else None


def _written(event: Event) -> bytes:
    data = ANTHROPIC_EVENTS.event(msgspec.json.encode(event))
    return b"event: %b\n%b" % (event["type"].encode(), data)
