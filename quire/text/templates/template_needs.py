"""The form in which a chat template takes an assistant's calls and missing content.

Some templates tell calls by ``content is none``, others join the content to a text. Some put a
call's arguments between texts, others loop over them or write them as JSON. Each is found out
once, by rendering short conversations in the forms that clients send.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

from quire.core.errors import RequestError
from quire.text.json_scanner import complete_json

Message: TypeAlias = dict[str, Any]
#: Renders messages with tools; None where the template refuses them.
Render: TypeAlias = Callable[[list[Message], list[Any] | None], str | None]

_KEY, _VALUE, _TEXT = "probed_key", "probed value", "probed text"
_OBJECT = {_KEY: _VALUE}
_JSON = json.dumps(_OBJECT)
_USER = {"role": "user", "content": _TEXT}
_SYSTEMS = [{"role": "system", "content": f"probed system {number}"} for number in (1, 2)]
_SCHEMA = {"type": "object", "properties": {"argument": {"type": "string"}}}
_FUNCTION = {"name": "probed_function", "description": "A function.", "parameters": _SCHEMA}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
#: Mistral's templates take ids of nine letters and digits only.
_CALL_ID = "probe1234"
_RESULT = {
    "role": "tool",
    "tool_call_id": _CALL_ID,
    "name": _FUNCTION["name"],
    "content": "probed result",
}
#: What templates write for a content that they do not expect to be missing.
_WRITTEN_NULLS = ("None", "null")
#: Characters of broken arguments, of one conversation, that are looked through for their end.
_MAX_BROKEN = 1 << 17


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """Forms of messages that one template takes; the defaults fit most templates.

    Attributes:
        null_with_calls: A message with calls may have no content.
        null_alone: A message without calls may have none, either.
        text_arguments: Arguments may be text.
        object_arguments: Arguments may be objects.
        several_systems: A conversation may begin with more than one system message.
    """

    null_with_calls: bool = False
    null_alone: bool = False
    text_arguments: bool = False
    object_arguments: bool = True
    several_systems: bool = False

    @classmethod
    def find(cls, render: Render) -> TemplateNeeds:
        """Find out what a template takes, with at most eleven renders."""
        null_alone = _is_taken(render(_turns(None), None), render(_turns(""), None))
        systems = render([*_SYSTEMS, _USER], None) or ""
        several_systems = all(system["content"] in systems for system in _SYSTEMS)
        for tools, after in ((_TOOLS, [_RESULT]), (None, [])):
            shown = {
                (content, is_text): render(
                    [_USER, _called(content, _JSON if is_text else _OBJECT), *after], tools
                )
                for content in ("", None)
                for is_text in (True, False)
            }
            if not any(_KEY in (prompt or "") for prompt in shown.values()):
                continue
            text, objects = (
                any(shows(shown[content, is_text]) for content in ("", None))
                for is_text, shows in ((True, _shows_text), (False, _shows_object))
            )
            if any(_has_own_form(shown[content, False]) for content in ("", None)):
                text = False
            null_with_calls = _is_taken(shown[None, text], shown["", text])
            return cls(null_with_calls, null_alone, text, objects or not text, several_systems)
        return cls(null_alone=null_alone, several_systems=several_systems)

    def shape(self, conversation: list[Message]) -> None:
        """Give messages the form that the template takes; what the client sent stays, if it can."""
        systems = list(takewhile(lambda message: message["role"] == "system", conversation))
        texts = [message["content"] for message in systems]
        if len(texts) > 1 and not self.several_systems and all(isinstance(t, str) for t in texts):
            conversation[: len(texts)] = [systems[0] | {"content": "\n".join(texts)}]
        left = _MAX_BROKEN
        for message in conversation:
            calls = message.get("tool_calls") or ()
            if message["content"] is None:
                takes_null = self.null_with_calls if calls else self.null_alone
                message["content"] = None if takes_null else ""
            for function in (call["function"] for call in calls):
                given = function.get("arguments")
                if isinstance(given, str) and not self.text_arguments:
                    function["arguments"], num_read = _as_object(given, left)
                    left -= num_read
                elif isinstance(given, Mapping) and not self.object_arguments:
                    function["arguments"] = json.dumps(given, ensure_ascii=False)


def has_forms(conversation: Sequence[Message]) -> bool:
    """Return whether anything in a conversation is taken in another form by other templates."""
    return any(
        message["content"] is None or message.get("tool_calls") for message in conversation
    ) or [message["role"] for message in conversation[:2]] == ["system", "system"]


def check_calls(message: Message, where: str) -> None:
    """Refuse calls that have no function.

    Raises:
        RequestError: ``param`` names the call.
    """
    for number, call in enumerate(message.get("tool_calls") or ()):
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            name = f"{where}.tool_calls[{number}]"
            raise RequestError(f"[chat] {name}.function must be an object; got {call!r:.80}.", name)


def _turns(content: str | None) -> list[Message]:
    return [_USER, {"role": "assistant", "content": content}, _USER]


def _called(content: str | None, arguments: str | dict[str, str]) -> Message:
    function = {"name": _FUNCTION["name"], "arguments": arguments}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _is_taken(null: str | None, empty: str | None) -> bool:
    """Return whether a prompt without content shows what it shows with an empty one."""
    if null is None or empty is None:
        return null is not None and not any(map(null.count, _WRITTEN_NULLS))
    is_written = any(null.count(word) > empty.count(word) for word in _WRITTEN_NULLS)
    is_lost = any(null.count(text) < empty.count(text) for text in (_TEXT, _KEY))
    return not is_written and not is_lost


def _shows_text(prompt: str | None) -> bool:
    return prompt is not None and _JSON in prompt


def _shows_object(prompt: str | None) -> bool:
    """Return whether an object is shown, and not as Python writes it."""
    return prompt is not None and _KEY in prompt and f"'{_KEY}'" not in prompt


def _has_own_form(prompt: str | None) -> bool:
    """Return whether an object is shown as neither JSON nor Python write it."""
    return _shows_object(prompt) and f'"{_KEY}"' not in str(prompt)


def _as_object(text: str, longest: int) -> tuple[dict[str, Any], int]:
    """Return arguments as an object, and how many characters were looked through for their end.

    What an answer's limit has cut is closed where it ends; anything else that is no JSON object is
    kept whole in one.
    """
    found, num_read = _read_object(text or "{}"), 0
    if found is None and len(text) <= longest:
        found, num_read = _read_object(complete_json(text) or ""), len(text)
    return {"arguments": text} if found is None else found, num_read


def _read_object(text: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        value = json.loads(text)
        if "\\ud" in text.lower():  # half a character is none, and no tokenizer reads it
            written = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
            value = json.loads(written.decode("utf-16", "replace"))
        return value if isinstance(value, dict) else None
    return None
