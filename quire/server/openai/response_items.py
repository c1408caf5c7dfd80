"""The output items of a response as they grow, and the events that report them."""

from __future__ import annotations

import uuid
from typing import Any

from quire.protocol.openai.chat_completion import Message
from quire.protocol.tools import CalledFunction, ToolCall
from quire.server.generation.answer_parser import ParsedAnswer, call_id
from quire.text.tool_parsers.interface import CallDelta

Item = dict[str, Any]
Event = dict[str, Any]


class OutputItems:
    """The items of one response: reasoning, one message, function calls.

    Args:
        tool_parser: Format of the calls, which decides how their ids look.
        include_reasoning: Whether the client wants to see the reasoning.

    Attributes:
        items: The items in the order in which they began; they grow in place.
    """

    def __init__(self, tool_parser: str | None, include_reasoning: bool) -> None:
        self._tool_parser = tool_parser
        self._include_reasoning = include_reasoning
        self._texts: dict[str, int] = {}
        self._calls: dict[int, int] = {}
        self._reasoning = ""
        self.items: list[Item] = []

    def add(self, parsed: ParsedAnswer) -> list[Event]:
        """Take what was parsed and return the events that report it."""
        events: list[Event] = []
        self._reasoning += parsed.reasoning
        if parsed.reasoning and self._include_reasoning:
            events += self._text("reasoning", parsed.reasoning)
        if parsed.content:
            if "reasoning" in self._texts:
                events += self._end(self._texts["reasoning"], "completed")
            events += self._text("message", parsed.content)
        for call in parsed.calls:
            events += self._call(call)
        return events

    def finish(self, complete: bool, broken: set[int]) -> list[Event]:
        """End the open items; ``broken`` are calls that cannot be made."""
        # An answer without a word is a message, too.
        opened = self._text("message", "") if complete and not self.items else []
        last = len(self.items) - 1
        wrong = {self._calls[index] for index in broken}
        return opened + [
            event
            for index in range(len(self.items))
            for event in self._end(
                index,
                "completed" if index not in wrong and (complete or index < last) else "incomplete",
            )
        ]

    def message(self) -> Message:
        """Return the assistant's message that these items make up."""
        texts = [i["content"][0]["text"] for i in self.items if i["type"] == "message"]
        calls = [
            ToolCall(
                id=item["call_id"],
                function=CalledFunction(name=item["name"], arguments=item["arguments"]),
            )
            for item in self.items
            if item["type"] == "function_call" and item["status"] == "completed"
        ]
        text = "".join(texts)
        return Message(
            role="assistant",
            content=text if text or not calls else None,
            tool_calls=calls or None,
            reasoning=self._reasoning or None,
        )

    def _begin(self, item: Item) -> tuple[int, Event]:
        self.items.append(item)
        index = len(self.items) - 1
        added = {**item, "content": []} if "content" in item else dict(item)
        return index, {"type": "response.output_item.added", "output_index": index, "item": added}

    def _text(self, kind: str, text: str) -> list[Event]:
        """Add to the reasoning or to the message."""
        events: list[Event] = []
        if kind not in self._texts:
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            item: Item = {
                "type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": [],
                "status": "in_progress",
            }  # fmt: skip
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                item = {
                    "type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant",
                    "status": "in_progress",
                }  # fmt: skip
            index, added = self._begin({**item, "content": [part]})
            self._texts[kind] = index
            events = [
                added,
                {
                    "type": "response.content_part.added",
                    **self._at(index),
                    "part": dict(part),
                },
            ]
        index = self._texts[kind]
        self.items[index]["content"][0]["text"] += text
        if text:
            name = "output_text" if kind == "message" else "reasoning_text"
            delta: Event = {
                "type": f"response.{name}.delta",
                **self._at(index),
                "delta": text,
            }
            events.append({**delta, "logprobs": []} if kind == "message" else delta)
        return events

    def _at(self, index: int) -> dict[str, Any]:
        return {"output_index": index, "item_id": self.items[index]["id"], "content_index": 0}

    def _call(self, call: CallDelta) -> list[Event]:
        events: list[Event] = []
        if call.name is not None:
            item = {
                "type": "function_call", "id": f"fc_{uuid.uuid4().hex}",
                "call_id": call_id(self._tool_parser), "name": call.name, "arguments": "",
                "status": "in_progress",
            }  # fmt: skip
            self._calls[call.index], added = self._begin(item)
            events.append(added)
        index = self._calls[call.index]
        if call.arguments:
            item = self.items[index]
            item["arguments"] += call.arguments
            events.append(
                {
                    "type": "response.function_call_arguments.delta",
                    "output_index": index,
                    "item_id": item["id"],
                    "delta": call.arguments,
                }
            )
        return events

    def _end(self, index: int, status: str) -> list[Event]:
        item = self.items[index]
        if item["status"] != "in_progress":
            return []
        item["status"] = status
        done = {"type": "response.output_item.done", "output_index": index, "item": dict(item)}
        if item["type"] == "function_call":
            arguments = {
                "type": "response.function_call_arguments.done", "output_index": index,
                "item_id": item["id"], "name": item["name"], "arguments": item["arguments"],
            }  # fmt: skip
            return [arguments, done]
        part, place = dict(item["content"][0]), self._at(index)
        text: Event = {"type": f"response.{part['type']}.done", **place, "text": part["text"]}
        if item["type"] == "message":
            text["logprobs"] = []
        return [text, {"type": "response.content_part.done", **place, "part": part}, done]
