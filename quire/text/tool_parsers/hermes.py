"""Hermes and Qwen: ``<tool_call>`` newline object newline ``</tool_call>``, as often as wanted."""

from __future__ import annotations

import re

from quire.text.marks import SPACE
from quire.text.tool_parsers.call_list import ListParser
from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.parser import Schemas

START, END = "<tool_call>", "</tool_call>"
FENCE = "```"
_FENCE = re.compile(r"```\w{0,16}(?=[^\w`])")
_FENCE_BEGIN = re.compile(r"`{1,3}|```\w{1,16}")


class HermesParser(ListParser):
    """An object between marks.

    Models write more than that: a list of calls between the marks, and a fence of Markdown.
    """

    marks = (START, END)
    end_mark = END

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self._is_fenced = False

    def in_content(self, parsed: Parsed) -> bool:
        """Look for the next call."""
        if not self.find_next(parsed, START):
            return False
        self._is_fenced = self.is_item = False
        self.state = "open"
        return True

    def in_open(self, parsed: Parsed) -> bool:
        """Expect a call or a list of calls, in a fence or without one."""
        space, text = self.split_space()
        if not text or _FENCE_BEGIN.fullmatch(text):
            return False
        fence = _FENCE.match(text)
        if fence is not None:
            self.pending += space + fence[0]
            self.buffer, self._is_fenced = text[fence.end() :], True
        elif text[0] == "[":
            self.begin_list(space)
        elif text[0] == "{":
            self.begin_call(self.pending + space, len(space))
        else:
            self.show_pending(parsed)
        return True

    def in_after(self, parsed: Parsed) -> bool:
        """Expect what ends the call, or another object; without them content begins."""
        space, text = self.split_space()
        self.awaited = (END,)
        if text.startswith(END):
            self.buffer, self.state, self.awaited = text[len(END) :], "content", ()
        elif self._is_fenced and text.startswith(FENCE):
            self.buffer, self._is_fenced = text[len(FENCE) :], False
        elif self.ends_call(text):
            return False
        elif self.is_item and text[0] in ",]":
            self._take_separator(space, text)
        elif text[0] == "{":
            self.begin_call(space, len(space))
        else:
            self.state = "content"
        return True

    def ends_call(self, rest: str) -> bool:
        """Say whether ``rest`` is what follows a call, or its beginning."""
        bare = rest.strip(SPACE)
        return END.startswith(bare) or (self._is_fenced and FENCE.startswith(bare))

    def _take_separator(self, space: str, text: str) -> None:
        self.buffer = text[1:]
        if text[0] == ",":
            self.pending, self.state = space + ",", "item"
        else:
            self.is_item = False
