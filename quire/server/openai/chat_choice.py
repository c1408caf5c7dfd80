"""One choice of a chat answer as a message or as deltas: reasoning, content, tool calls."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from quire.protocol.openai.chat_completion import AnswerMessage
from quire.protocol.tools import CalledFunction, ToolCall
from quire.server.generation.answer_parser import ParsedAnswer, call_id
from quire.server.generation.prompts.tool_use import AnswerReading
from quire.text.tool_parsers.interface import CallDelta


class ChoiceFormatter:
    """Formats one choice, whole or piece by piece.

    Args:
        reading: The rules by which its text is read.
        include_reasoning: Whether the client wants to see the reasoning.
    """

    def __init__(self, reading: AnswerReading, include_reasoning: bool) -> None:
        self._parser = reading.create_parser()
        self._tool_parser = reading.tool_parser
        self._include_reasoning = include_reasoning

    @property
    def errors(self) -> list[str]:
        """Messages about what is wrong with the calls."""
        return self._parser.errors

    def finish_reason(self, reason: str | None) -> str | None:
        """Return ``tool_calls`` for an answer that ended by itself with calls that can be made."""
        called = reason == "stop" and self._parser.num_calls and not self._parser.errors
        return "tool_calls" if called else reason

    def message(self, role: str, text: str) -> AnswerMessage:
        """Return the whole message of a complete text."""
        if self._parser.plain:
            return AnswerMessage(role=role, content=text)
        parsed = self._parser.read(text, final=True)
        calls: list[ToolCall] = []
        arguments: list[str] = []
        for call in parsed.calls:
            if call.name is not None:
                made = CalledFunction(name=call.name)
                calls.append(ToolCall(id=call_id(self._tool_parser), function=made))
                arguments.append("")
            arguments[call.index] += call.arguments
        for made_call, text in zip(calls, arguments, strict=True):
            made_call.function.arguments = text
        reasoning = parsed.reasoning if self._include_reasoning and parsed.reasoning else UNSET
        nothing = not parsed.content and (calls or parsed.reasoning)
        return AnswerMessage(
            role=role,
            content=None if nothing else parsed.content,
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=calls or UNSET,
        )

    def deltas(self, text: str, final: bool) -> list[bytes]:
        """Return the next piece of text as deltas in JSON; after calls an empty one is last."""
        if self._parser.plain:
            return [b'{"content":%b}' % msgspec.json.encode(text)] if text else []
        parsed = self._parser.read(text, final)
        written = list(self._written(parsed))
        if final and parsed.calls:
            written.append(b"{}")
        return written

    def _written(self, parsed: ParsedAnswer) -> list[bytes]:
        written = []
        if parsed.reasoning and self._include_reasoning:
            part = msgspec.json.encode(parsed.reasoning)
            written.append(b'{"reasoning":%b,"reasoning_content":%b}' % (part, part))
        if parsed.content:
            written.append(b'{"content":%b}' % msgspec.json.encode(parsed.content))
        for call in parsed.calls:
            written += self._call(call)
        return written

    def _call(self, call: CallDelta) -> list[bytes]:
        """A call begins with its name and no arguments; these follow in pieces."""
        written = []
        if call.name is not None:
            begun = {
                "index": call.index,
                "id": call_id(self._tool_parser),
                "type": "function",
                "function": {"name": call.name, "arguments": ""},
            }
            written.append(msgspec.json.encode({"tool_calls": [begun]}))
        if call.arguments:
            more = {"index": call.index, "function": {"arguments": call.arguments}}
            written.append(msgspec.json.encode({"tool_calls": [more]}))
        return written
