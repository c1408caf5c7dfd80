"""``input`` of ``POST /v1/responses``: a conversation's items, and the messages they become."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from quire.core.errors import RequestError
from quire.core.quoting import quoted
from quire.protocol.compat import refuse
from quire.protocol.histories import OMITTED, SEPARATOR
from quire.protocol.openai.chat_completion import Message
from quire.protocol.tools import CalledFunction, ToolCall

#: Finds an item that the server keeps by its id; None where it keeps none of that id.
KeptItems: TypeAlias = Callable[[str], dict[str, Any] | None]
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_CALL, _OUTPUT = "_call", "_call_output"
#: Fields of a call that say nothing of what is called.
_OF_CALLS = ("type", "id", "call_id", "status", "name", "namespace")
#: What tools that only OpenAI runs have left in a history. No text of it is for the model.
_LEFT_OUT = frozenset(
    {
        "code_interpreter_call", "computer_call", "computer_call_output", "file_search_call",
        "image_generation_call", "mcp_approval_request", "mcp_approval_response", "mcp_call",
        "mcp_list_tools", "tool_search_call", "tool_search_output", "web_search_call",
    }
)  # fmt: skip


class ResponseInput:
    """Reads the items of one conversation.

    Args:
        takes_pictures: Whether the model reads pictures.
        kept: Stored items, which are found by their ids.

    Attributes:
        messages: Messages that the items became.
        left_out: Paths of items and parts that the model is not shown.
    """

    def __init__(self, takes_pictures: bool, kept: KeptItems) -> None:
        self.messages: list[Message] = []
        self.left_out: list[str] = []
        self._takes_pictures = takes_pictures
        self._kept = kept
        self._named: set[str] = set()
        self._reasoning = ""

    def read(self, items: list[dict[str, Any]]) -> None:
        """Add items.

        Raises:
            RequestError: An item is of a kind that is not served, or malformed.
        """
        for index, item in enumerate(items):
            self._add(item, f"input[{index}]")
        self._end_reasoning()

    def _add(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or _kind_without_type(item)
        if kind == "item_reference":
            self._add(self._referred(item, where), where)
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            self._reasoning = _joined(self._reasoning, _joined_text(parts, where))
            if item.get("encrypted_content"):
                self.left_out.append(f"{where}.encrypted_content")
        elif kind == "message":
            self._add_message(_message(item, where, self._takes_pictures))
        elif kind in _LEFT_OUT:
            self.left_out.append(where)
        elif isinstance(kind, str) and kind.endswith(_OUTPUT):
            content = self._result(_output(item, kind), f"{where}.output")
            call_id = _text(item, "call_id" if "call_id" in item else "id", where)
            self._add_message(Message(role="tool", content=content, tool_call_id=call_id))
        elif isinstance(kind, str) and kind.endswith(_CALL):
            self._add_call(_call(item, kind, where))
        else:
            rule = "must be message, reasoning, or a call or its output"
            raise refuse(f"{where}.type", rule, kind)

    def _add_message(self, message: Message) -> None:
        if message.role == "assistant":
            message.reasoning, self._reasoning = self._reasoning or None, ""
        self._end_reasoning()
        self.messages.append(message)

    def _add_call(self, call: ToolCall) -> None:
        """Add a call to the assistant's message before it, or begin one."""
        if not self.messages or self.messages[-1].role != "assistant":
            self._add_message(Message(role="assistant"))
        last = self.messages[-1]
        last.tool_calls = last.tool_calls or []
        last.tool_calls.append(call)
        last.reasoning = _joined(last.reasoning, self._reasoning) or None
        self._reasoning = ""

    def _referred(self, item: dict[str, Any], where: str) -> dict[str, Any]:
        """Return the item that another one only names; a short list cannot become a long one."""
        item_id = _text(item, "id", where)
        found = None if item_id in self._named else self._kept(item_id)
        self._named.add(item_id)
        if found is None:
            raise RequestError(
                f"[{where}.id] must name, once, an item of an answer that is kept here; got "
                f"{quoted(item_id)}. Send the item itself.",
                f"{where}.id",
            )
        return found

    def _end_reasoning(self) -> None:
        """Make reasoning that nothing followed an answer of its own."""
        if self._reasoning:
            self.messages.append(Message(role="assistant", reasoning=self._reasoning))
            self._reasoning = ""

    def _result(self, output: Any, where: str) -> str:
        """Return what a tool gave as text.

        A picture would be sent again in every later turn: refusing it would end the conversation.
        """
        if isinstance(output, dict):
            return json.dumps(output, ensure_ascii=False)
        if not isinstance(output, list):
            return _content(output, where)
        texts = []
        for index, part in enumerate(output):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in ("input_image", "input_file"):
                self.left_out.append(f"{where}[{index}]")
                texts.append(OMITTED.format(kind=kind.removeprefix("input_")))
            elif isinstance(part, dict) and kind not in _TEXT_PARTS:  # of a shell, by command
                texts.append(json.dumps(part, ensure_ascii=False))
            else:
                texts.append(_joined_text([part], f"{where}[{index}]"))
        return "".join(texts)


def _call(item: dict[str, Any], kind: str, where: str) -> ToolCall:
    """Return a call: of a function, of a tool whose input is text, or of one that OpenAI knows."""
    name = item.get("name")
    arguments: str | dict[str, Any] | None
    if kind == "function_call":
        arguments = item.get("arguments", ())
        if not isinstance(arguments, str | dict | None):
            raise refuse(f"{where}.arguments", "must be JSON text or an object", arguments)
    else:
        name = kind.removesuffix(_CALL) if name is None else name
        given = {field: value for field, value in item.items() if field not in _OF_CALLS}
        arguments = json.dumps(given, ensure_ascii=False)
    if not isinstance(name, str):
        raise refuse(f"{where}.name", "must be text", name)
    function = CalledFunction(name=name, arguments=arguments)
    return ToolCall(id=_text(item, "call_id", where), function=function)


def _kind_without_type(item: dict[str, Any]) -> str | None:
    if "role" in item:
        return "message"
    return "item_reference" if item.keys() <= {"id", "type"} else None


def _output(item: dict[str, Any], kind: str) -> Any:
    """Return what a tool gave; of a patch, where it says nothing, whether it was applied."""
    output = item.get("output", ())
    if kind == "apply_patch_call_output" and not output:
        return item.get("status")
    return "" if output is None else output


def _message(item: dict[str, Any], where: str, takes_pictures: bool) -> Message:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        rule = (
            "must be user, assistant, system or developer, and a tool's result an item of its own"
        )
        raise refuse(f"{where}.role", rule, role)
    if item.get("tool_calls"):
        rule = "must be items of the type function_call"
        raise refuse(f"{where}.tool_calls", rule, item["tool_calls"])
    value = item.get("content")
    if value is None and role == "assistant":
        return Message(role=role)
    if takes_pictures and isinstance(value, list):
        parts = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(value)]
        if any(part["type"] == "image_url" for part in parts):
            return Message(role=role, content=parts)
    return Message(role=role, content=_content(value, f"{where}.content"))


def _part(part: Any, where: str) -> dict[str, Any]:
    """Return a part as chats have it."""
    if isinstance(part, dict) and part.get("type") == "input_image":
        if not isinstance(part.get("image_url"), str):
            raise refuse(
                f"{where}.image_url", "must be a URL; files are not kept", part.get("image_url")
            )
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": _joined_text([part], where)}


def _joined(first: str | None, second: str) -> str:
    return SEPARATOR.join(filter(None, (first, second)))


def _content(value: Any, where: str) -> str:
    return value if isinstance(value, str) else _joined_text(value, where)


def _joined_text(parts: Any, where: str) -> str:
    if not isinstance(parts, list):
        raise refuse(where, "must be text or a list of parts", parts)
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        field = "refusal" if kind == "refusal" else "text"
        if kind not in (*_TEXT_PARTS, "refusal") or not isinstance(part.get(field), str):
            raise refuse(
                f"{where}[{index}]", "must be a part of text; this model takes text only", part
            )
        texts.append(part[field])
    return "".join(texts)


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refuse(f"{where}.{name}", "must be text", value)
    return value
