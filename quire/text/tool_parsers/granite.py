"""Granite: ``<|tool_call|>`` (3.0) or ``<tool_call>`` (3.1), then a list of calls."""

from __future__ import annotations

from quire.text.tool_parsers.call_list import ListParser
from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.parser import Schemas

TOKEN, TEXT = "<|tool_call|>", "<tool_call>"


class GraniteParser(ListParser):
    """A list after a mark.

    An answer that is nothing but a list of calls has them without a mark.

    Source: vLLM's tool_parsers/granite_tool_parser.py.
    """

    marks = begin_marks = (TOKEN, TEXT)
    first_state = "begin"
    needs_arguments = True

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self.state = "begin"

    def in_begin(self, parsed: Parsed) -> bool:
        """Expect the list, after one mark or both."""
        space, text = self.split_space()
        for mark in self.marks:
            if text.startswith(mark):
                self.pending += space + mark
                self.buffer = text[len(mark) :]
                return True
        if any(mark.startswith(text) for mark in self.marks):
            return False
        if text[0] == "[":
            self.begin_list(space)
        else:
            self.show_pending(parsed)
        return True
