"""Hermes and Qwen: ``<tool_call>`` newline object newline ``</tool_call>``, as often as wanted."""

from __future__ import annotations

from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.parser import StateParser

START, END = "<tool_call>", "</tool_call>"


class HermesParser(StateParser):
    """See :class:`quire.text.tool_parsers.interface.ToolParser`."""

    marks = (START, END)
    end_mark = END

    def in_content(self, parsed: Parsed) -> bool:
        """Look for the next call."""
        if not self.find_mark(parsed, START):
            return False
        self.begin_call(self.pending, 0)
        return True

    def in_after(self, parsed: Parsed) -> bool:
        """Expect the end mark or another object; without them the next call or content begins."""
        space, text = self.split_space()
        if text.startswith(END):
            self.buffer = text[len(END) :]
        elif END.startswith(text):
            return False
        elif text[0] == "{":
            self.begin_call(space, len(space))
            return True
        self.state = "content"
        return True
