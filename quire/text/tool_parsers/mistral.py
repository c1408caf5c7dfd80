"""Mistral: ``[TOOL_CALLS]`` before a list of calls, or before a name and its arguments."""

from __future__ import annotations

import re

from quire.text.tool_parsers.call_list import ListParser
from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.parser import MAX_HEAD

START, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"([A-Za-z0-9_.\-]+)[ \t\n\r]*(\[CALL_ID\][A-Za-z0-9]*)?(\[ARGS\])?(?=\{)")
_HEAD_BEGUN = re.compile(r"[A-Za-z0-9_.\-]+[ \t\n\r]*(\[[A-Z_\]A-Za-z0-9\[]*)?[ \t\n\r]*")


class MistralParser(ListParser):
    """A list of calls, or a name before each.

    The list is of older models; the newer ones write ``name{...}`` or ``name[ARGS]{...}``.
    """

    marks = (START, ARGUMENTS, CALL_ID)
    begin_marks = (START,)
    first_state = "head"

    def in_head(self, parsed: Parsed) -> bool:
        """Tell the forms apart."""
        space, text = self.split_space()
        if not text:
            return False
        self.is_item = text[0] == "["
        if self.is_item:
            self.begin_list(space)
        elif text[0] == "{":
            self.begin_call(self.pending + space, len(space))
        else:
            return self._read_name(parsed, space, text)
        return True

    def _read_name(self, parsed: Parsed, space: str, text: str) -> bool:
        head = _HEAD.match(text, 0, MAX_HEAD)
        if head is not None:
            self.begin_arguments(parsed, head[1], len(space) + head.end())
            return True
        if _HEAD_BEGUN.fullmatch(text) and len(text) < MAX_HEAD:
            return False
        self.show_pending(parsed)
        return True
