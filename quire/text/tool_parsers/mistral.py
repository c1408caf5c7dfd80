"""Mistral: ``[TOOL_CALLS]`` before a list of calls, or before a name and its arguments."""

from __future__ import annotations

import re

from quire.text.tool_parsers.call_reader import CallReader
from quire.text.tool_parsers.interface import CallDelta, Parsed
from quire.text.tool_parsers.json_scanner import JsonScanner
from quire.text.tool_parsers.parser import StateParser

START, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"([A-Za-z0-9_.\-]+)[ \t\n\r]*(\[CALL_ID\][A-Za-z0-9]*)?(\[ARGS\])?(?=\{)")
_HEAD_BEGUN = re.compile(r"[A-Za-z0-9_.\-]+[ \t\n\r]*(\[[A-Z_\]A-Za-z0-9\[]*)?[ \t\n\r]*")
MAX_HEAD = 256


class MistralParser(StateParser):
    """See :class:`quire.text.tool_parsers.interface.ToolParser`.

    The list is of older models; the newer ones write ``name{...}`` or ``name[ARGS]{...}``.
    """

    marks = (START, ARGUMENTS, CALL_ID)

    def __init__(self) -> None:
        super().__init__()
        self._scanner = JsonScanner()
        self._in_list = False

    def in_content(self, parsed: Parsed) -> bool:
        """Look for the mark."""
        if not self.find_mark(parsed, START):
            return False
        self.state = "head"
        return True

    def in_head(self, parsed: Parsed) -> bool:
        """Tell the forms apart."""
        space, text = self.split_space()
        if not text:
            return False
        self._in_list = text[0] == "["
        if self._in_list:
            self.pending += space + "["
            self.buffer = text[1:]
            self.state = "item"
        elif text[0] == "{":
            self.begin_call(self.pending + space, len(space))
        else:
            return self._read_name(parsed, text)
        return True

    def _read_name(self, parsed: Parsed, text: str) -> bool:
        head = _HEAD.match(text)
        if head is not None:
            self.pending, self.buffer = "", text[head.end() :]
            self._scanner, self.state = JsonScanner(), "bare_arguments"
            parsed.calls.append(CallDelta(self.num_calls, head[1], ""))
            self.reader = CallReader(self.num_calls)
            self.reader.given = True
            self.num_calls += 1
            return True
        if _HEAD_BEGUN.fullmatch(text) and len(text) <= MAX_HEAD:
            return False
        parsed.content += self.pending
        self.pending, self.state = "", "content"
        return True

    def in_bare_arguments(self, parsed: Parsed) -> bool:
        """Read the object after a name."""
        end = self._scanner.feed(self.buffer)
        if end:
            parsed.calls.append(CallDelta(self.num_calls - 1, None, self.buffer[:end]))
            self.buffer = self.buffer[end:]
        if self._scanner.error:
            self.errors.append((self.num_calls - 1, self._scanner.error))
            self.state = "broken"
        elif self._scanner.done:
            self.state = "content"
        return bool(self._scanner.error or self._scanner.done)

    def in_item(self, parsed: Parsed) -> bool:
        """Expect a call of the list."""
        space, text = self.split_space()
        if not text:
            return False
        if text[0] == "{":
            self.begin_call(self.pending + space, len(space))
        else:
            parsed.content += self.pending
            self.pending, self.state = "", "content"
        return True

    def in_after(self, parsed: Parsed) -> bool:
        """Expect the next call of the list, or its end."""
        space, text = self.split_space()
        if not text:
            return False
        self.state = "content"
        if self._in_list and text[0] in ",]":
            if text[0] == ",":
                self.pending, self.state = space + ",", "item"
            self.buffer = text[1:]
        return True
