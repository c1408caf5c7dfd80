"""Calls whose arguments stand in tags, each by itself: Qwen3-Coder and GLM 4.5."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import ClassVar

from quire.text.marks import held_back
from quire.text.tool_parsers.argument_types import argument_json, property_types
from quire.text.tool_parsers.interface import CallDelta, Parsed
from quire.text.tool_parsers.parser import MAX_HEAD, Schemas, StateParser

START, END = "<tool_call>", "</tool_call>"
TEXT_ONLY = frozenset({"string"})


class TaggedParser(StateParser, ABC):
    """The states of a call in tags; a format says what the tags are.

    The arguments' JSON is written here: text is passed on as it comes, other values when they
    are complete. Which they are, the function's schema says; without one, what they look like.
    """

    end_mark = END
    #: A call's beginning up to its name.
    head: ClassVar[re.Pattern[str]]
    #: What comes before an argument's value, with its name; what comes after the last one.
    key: ClassVar[re.Pattern[str]]
    last: ClassVar[str]
    value_end: ClassVar[str]
    #: A new line after the value's beginning and one before its end are none of it.
    framed: ClassVar[bool]

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self._name = ""
        self._types = TEXT_ONLY
        self._held: list[str] = []
        self._num_arguments = 0
        self._begun = False

    def is_in_arguments(self) -> bool:
        """Say whether a call was given away and its arguments were not."""
        return self.state in ("key", "value")

    def in_content(self, parsed: Parsed) -> bool:
        """Look for the next call."""
        if not self.find_mark(parsed, START):
            return False
        self.state = "head"
        return True

    def in_head(self, parsed: Parsed) -> bool:
        """Expect the name."""
        head = self.head.match(self.buffer, 0, MAX_HEAD)
        if head is not None:
            self._name, self._num_arguments = head[1], 0
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
        if text.startswith(self.last):
            self._give(parsed, "}")
            self.buffer = text[len(self.last) :]
            self.state = "content" if self.last == END else "after"
            return True
        key = self.key.match(text, 0, MAX_HEAD)
        if key is not None:
            self.buffer, self.state = text[key.end() :], "value"
            self._types = property_types(self.schemas.get(self._name, {}), key[1])
            self._held, self._begun = [], False
            comma = ", " if self._num_arguments else ""
            self._num_arguments += 1
            self._give(parsed, f"{comma}{json.dumps(key[1], ensure_ascii=False)}: ")
            if self._types == TEXT_ONLY:
                self._give(parsed, '"')
            return True
        if self.last.startswith(text) or (len(text) < MAX_HEAD and self.key_may_begin(text)):
            return False
        self.break_off("an argument has no tag")
        return True

    @abstractmethod
    def key_may_begin(self, text: str) -> bool:
        """Say whether ``text`` may become the tags before a value."""

    def in_value(self, parsed: Parsed) -> bool:
        """Read a value up to its end."""
        if self.framed and not self._begun:
            self.buffer = self.buffer.removeprefix("\n")
        self._begun = True
        at = self.buffer.find(self.value_end)
        text = self.buffer[: at if at >= 0 else len(self.buffer) - self._kept()]
        self.buffer = self.buffer[len(text) :]
        if at >= 0:
            self.buffer = self.buffer[len(self.value_end) :]
            text = text.removesuffix("\n") if self.framed else text
            self.state = "key"
        if self._types == TEXT_ONLY:
            self._give(parsed, json.dumps(text, ensure_ascii=False)[1:-1])
            if at >= 0:
                self._give(parsed, '"')
        else:
            self._held.append(text)
            if at >= 0:
                self._give(parsed, argument_json("".join(self._held), self._types))
        return at >= 0

    def _kept(self) -> int:
        """Return how many characters at the buffer's end may belong to the value's end."""
        keep = held_back(self.buffer, self.value_end)
        before = self.buffer[: len(self.buffer) - keep]
        return keep + 1 if self.framed and before.endswith("\n") else keep

    def in_after(self, parsed: Parsed) -> bool:
        """Expect the end mark; without it the next call or content begins."""
        _, text = self.split_space()
        if text.startswith(END):
            self.buffer = text[len(END) :]
        elif END.startswith(text):
            return False
        self.state = "content"
        return True

    def _give(self, parsed: Parsed, text: str) -> None:
        if text:
            parsed.calls.append(CallDelta(self.num_calls - 1, None, text))


class Qwen3CoderParser(TaggedParser):
    """See :class:`quire.text.tool_parsers.interface.ToolParser`.

    ``<tool_call><function=name><parameter=key>`` value ``</parameter></function></tool_call>``,
    with new lines between.

    Source: the chat template of Qwen3-Coder.
    """

    marks = (START, END)
    head = re.compile(r"\s*<function=([^<>\s]+)>")
    key = re.compile(r"<parameter=([^<>\n]+)>")
    last = "</function>"
    value_end = "</parameter>"
    framed = True

    def is_hopeless(self, text: str) -> bool:
        """Say whether no call can begin with ``text``."""
        return not may_begin(text.lstrip(), "<function=", re.compile(r"[^<>\s]*"))

    def key_may_begin(self, text: str) -> bool:
        """Say whether ``text`` may become the tags before a value."""
        return may_begin(text, "<parameter=", re.compile(r"[^<>\n]*"))


class Glm45Parser(TaggedParser):
    """See :class:`quire.text.tool_parsers.interface.ToolParser`.

    ``<tool_call>name``, then ``<arg_key>key</arg_key><arg_value>`` value ``</arg_value>`` as often
    as wanted, ``</tool_call>``; new lines between are allowed.

    Source: the chat templates of GLM-4.5 and GLM-4.7.
    """

    marks = (START, END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    head = re.compile(r"\s*([^<>{}\s]+)\s*(?=<arg_key>|</tool_call>)")
    key = re.compile(r"<arg_key>([^<]+)</arg_key>\s*<arg_value>")
    last = END
    value_end = "</arg_value>"
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
