"""Calls whose arguments stand in tags, each by itself: Qwen3-Coder and GLM 4.5."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from quire.text.marks import SPACE
from quire.text.tool_parsers.argument_types import argument_json, property_types
from quire.text.tool_parsers.interface import CallDelta, Parsed
from quire.text.tool_parsers.parser import MAX_HEAD, Schemas, StateParser

START, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
TEXT_ONLY = frozenset({"string"})


class TaggedParser(StateParser, ABC):
    """The states of a call in tags; a format says what the tags are.

    The arguments' JSON is written here: text is passed on as it comes, other values when they
    are complete. Which they are, the function's schema says; without one, what they look like.
    A closing tag inside a value is text, so a value's end is known by the tags after it.
    """

    begin_marks = (START,)
    first_state = "head"
    end_mark = END
    #: A call's name, up to the first argument or the call's end.
    head: ClassVar[re.Pattern[str]]
    #: What comes before an argument's value, with its name; what comes after the last one.
    key: ClassVar[re.Pattern[str]]
    last: ClassVar[str]
    #: The tag after a value, which is no part of the rest.
    value_end: ClassVar[str]
    #: The tags that show a value's end: one of each, in order. The answer's end is the last ones.
    value_ends: ClassVar[tuple[tuple[tuple[str, ...], ...], ...]]
    #: A new line after the value's beginning and one before its end are none of it.
    framed: ClassVar[bool]

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self._name = ""
        self._types = TEXT_ONLY
        self._held: list[str] = []
        self._keys: list[str] = []
        self._begun = False

    def is_in_arguments(self) -> bool:
        """Say whether a call was given away and its arguments were not."""
        return self.state in ("key", "value")

    def flush(self) -> Parsed:
        """Return what was held back; an argument is whole when the answer ends after its tag."""
        parsed = Parsed()
        self.take_space()
        if self.state == "value" and self.in_value(parsed, final=True):
            self.read(parsed, "")
        if self.state == "key" and self._is_whole():
            self._give(parsed, "}")
            self.buffer, self.state = "", "after"
        parsed.join(super().flush())
        return parsed

    def _is_whole(self) -> bool:
        """Say whether the arguments given are all that the function needs, and none has begun."""
        _, text = self.split_space()
        required = self.schemas.get(self._name, {}).get("required")
        needed = required if isinstance(required, list) else []
        return (
            bool(self._keys)
            and all(name in self._keys for name in needed)
            and (self.last.startswith(text) or END.startswith(text))
        )

    def in_head(self, parsed: Parsed) -> bool:
        """Expect the name."""
        head = self.head.match(self.buffer, 0, MAX_HEAD)
        if head is not None:
            self._name, self._keys = head[1], []
            self.buffer, self.state = self.buffer[head.end() :], "key"
            self.name_call(parsed, self._name, "{")
            return True
        if len(self.buffer) < MAX_HEAD and not self.is_hopeless(self.buffer):
            return False
        self.show_pending(parsed)
        return True

    @abstractmethod
    def is_hopeless(self, text: str) -> bool:
        """Say whether no call can begin with ``text``."""

    def in_key(self, parsed: Parsed) -> bool:
        """Expect the next argument, or the end of the call."""
        _, text = self.split_space()
        if text.startswith((self.last, END)):
            self._give(parsed, "}")
            self.buffer = text if text.startswith(END) else text[len(self.last) :]
            self.state = "after"
            return True
        key = self.key.match(text, 0, MAX_HEAD)
        if key is not None:
            self.buffer, self.state = text[key.end() :], "value"
            self._types = property_types(self.schemas.get(self._name, {}), key[1])
            self._held, self._begun = [], False
            comma = ", " if self._keys else ""
            self._keys.append(key[1])
            self._give(parsed, f"{comma}{json.dumps(key[1], ensure_ascii=False)}: ")
            if self._types == TEXT_ONLY:
                self._give(parsed, '"')
            return True
        if self.last.startswith(text) or END.startswith(text):
            return False
        if len(text) < MAX_HEAD and self.key_may_begin(text):
            return False
        self._give(parsed, "}")  # what is wrong is content, and the arguments stay JSON
        self.errors.append((self.num_calls - 1, "an argument has no tag"))
        self.state, self.awaited = "content", (END,)
        return True

    @abstractmethod
    def key_may_begin(self, text: str) -> bool:
        """Say whether ``text`` may become the tags before a value."""

    def in_value(self, parsed: Parsed, final: bool = False) -> bool:
        """Read a value up to its end; ``final`` when the answer has ended."""
        if self.framed and not self._begun:
            self.buffer = self.buffer.removeprefix("\n")
        self._begun = True
        at, ended = self._find_end(final)
        text, self.buffer = self.buffer[:at], self.buffer[at:]
        if ended:
            self.buffer = self.buffer.removeprefix(self.value_end)
            text = text.removesuffix("\n") if self.framed else text
            self.state = "key"
        elif self.framed and text.endswith("\n"):
            text, self.buffer = text[:-1], "\n" + self.buffer
        if self._types == TEXT_ONLY:
            self._give(parsed, json.dumps(text, ensure_ascii=False)[1:-1])
            if ended:
                self._give(parsed, '"')
        else:
            self._held.append(text)
            if ended:
                self._give(parsed, argument_json("".join(self._held), self._types))
        return ended

    def _find_end(self, final: bool) -> tuple[int, bool]:
        """Return where the value ends or may end, and whether it does."""
        at = self.buffer.find("<")
        while at >= 0:
            text = self.buffer[at:]
            found = [_begins_with(text, marks, final) for marks in self.value_ends]
            if not self.framed or (at and self.buffer[at - 1] == "\n"):
                found.append(self._begins_argument(text))
            if True in found or None in found:
                return at, True in found
            at = self.buffer.find("<", at + 1)
        return len(self.buffer), False

    def _begins_argument(self, text: str) -> bool | None:
        """Say whether another argument of the function begins; None when it still may."""
        key = self.key.match(text, 0, MAX_HEAD)
        if key is None:
            return None if len(text) < MAX_HEAD and self.key_may_begin(text) else False
        properties = self.schemas.get(self._name, {}).get("properties")
        return isinstance(properties, dict) and key[1] in properties and key[1] not in self._keys

    def in_after(self, parsed: Parsed) -> bool:
        """Expect the end mark; without it the next call or content begins."""
        _, text = self.split_space()
        self.awaited = (END,)
        if text.startswith(END):
            self.buffer, self.awaited = text[len(END) :], ()
        elif END.startswith(text):
            return False
        self.state = "content"
        return True

    def _give(self, parsed: Parsed, text: str) -> None:
        if text:
            parsed.calls.append(CallDelta(self.num_calls - 1, None, text))


class Qwen3CoderParser(TaggedParser):
    """``<tool_call><function=name><parameter=key>`` value ``</parameter></function></tool_call>``,
    with new lines between. The models leave ``<tool_call>`` out at times, so that a call is known
    by ``<function=name>`` and the tag after it; and they put names in quotes.

    Source: the chat template of Qwen3-Coder.
    """

    marks = (START, END)
    head = re.compile(rf"""["']?([^<>\s"']+)["']?>\s*(?=<parameter=|{FUNCTION_END})""")
    key = re.compile(r"""<parameter=["']?([^<>\n]+?)["']?>""")
    last = FUNCTION_END
    value_end = "</parameter>"
    value_ends = (
        (("</parameter>",), ("<parameter=", FUNCTION_END, END)),
        ((FUNCTION_END,), (END,), (START,)),
    )
    framed = True

    def in_content(self, parsed: Parsed) -> bool:
        """Look for the next call, with its mark or without."""
        if not self.find_next(parsed, START, FUNCTION):
            return False
        self.state = "head" if self.pending.endswith(FUNCTION) else "open"
        return True

    def in_open(self, parsed: Parsed) -> bool:
        """Expect the function after the mark."""
        space, text = self.split_space()
        if text.startswith(FUNCTION):
            self.pending += space + FUNCTION
            self.buffer, self.state = text[len(FUNCTION) :], "head"
            return True
        if FUNCTION.startswith(text):
            return False
        self.show_pending(parsed)
        return True

    def is_hopeless(self, text: str) -> bool:
        """Say whether no call can begin with ``text``."""
        return re.fullmatch(r"[^<>\s]*(>\s*(</?[a-z]*)?)?", text) is None

    def key_may_begin(self, text: str) -> bool:
        """Say whether ``text`` may become the tags before a value."""
        return may_begin(text, "<parameter=", re.compile(r"[^<>\n]*"))


class Glm45Parser(TaggedParser):
    """``<tool_call>name``, then keys and values, then ``</tool_call>``.

    ``<arg_key>key</arg_key><arg_value>`` value ``</arg_value>`` stands there as often as wanted;
    new lines between are allowed.

    Source: the chat templates of GLM-4.5 and GLM-4.7.
    """

    marks = (START, END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    head = re.compile(r"\s*([^<>{}\s]+)\s*(?=<arg_key>|</tool_call>)")
    key = re.compile(r"<arg_key>([^<]+)</arg_key>\s*<arg_value>")
    last = END
    value_end = "</arg_value>"
    value_ends = ((("</arg_value>",), ("<arg_key>", END)), ((END,), (START,)))
    framed = False

    def is_hopeless(self, text: str) -> bool:
        """Say whether no call can begin with ``text``."""
        return re.fullmatch(r"\s*[^<>{}\s]*\s*(</?[a-z_]*)?", text) is None

    def key_may_begin(self, text: str) -> bool:
        """Say whether ``text`` may become the tags before a value."""
        rest = re.compile(r"[^<]*(</?[a-z_]*>?\s*(<[a-z_]*)?)?")
        return may_begin(text, "<arg_key>", rest)


def may_begin(text: str, mark: str, rest: re.Pattern[str]) -> bool:
    """Say whether ``text`` is the beginning of ``mark``, or that and some of ``rest``."""
    if not text.startswith(mark):
        return mark.startswith(text)
    return rest.fullmatch(text, len(mark)) is not None


def _begins_with(text: str, marks: Iterable[tuple[str, ...]], final: bool) -> bool | None:
    """Say whether ``text`` begins with one of each group of marks; None when it still may.

    Args:
        text: Text that begins where the first mark would.
        marks: The groups, in order; space may stand between.
        final: Whether no more text arrives: its end then stands for the groups after the first.
    """
    rest = text
    for number, group in enumerate(marks):
        rest = rest.lstrip(SPACE)
        if final and number and not rest:
            return True
        found = next((mark for mark in group if rest.startswith(mark)), None)
        if found is None:
            return None if any(mark.startswith(rest) for mark in group) else False
        rest = rest[len(found) :]
    return True
