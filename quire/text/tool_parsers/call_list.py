"""A JSON list of calls, as Mistral and Granite write it after their marks."""

from __future__ import annotations

from quire.text.marks import SPACE
from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.parser import Schemas, StateParser


class ListParser(StateParser):
    """The states inside a list; a format finds its beginning.

    Attributes:
        is_item: The call under way is an item of a list.
    """

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self.is_item = False

    def flush(self) -> Parsed:
        """Return what was held back; a comma after a call is none of the answer."""
        if self.state == "item" and self.num_calls and not self.buffer.strip(SPACE):
            self.pending = ""
        return super().flush()

    def begin_list(self, space: str) -> None:
        """Take ``space`` and the bracket after it."""
        self.pending += space + "["
        self.buffer = self.buffer[len(space) + 1 :]
        self.is_item = True
        self.state = "item"

    def in_item(self, parsed: Parsed) -> bool:
        """Expect a call of the list."""
        space, text = self.split_space()
        if not text:
            return False
        if text[0] == "{":
            self.begin_call(self.pending + space, len(space))
        else:
            self.show_pending(parsed)
        return True

    def in_after(self, parsed: Parsed) -> bool:
        """Expect the next call of the list, or its end."""
        space, text = self.split_space()
        if not text:
            return False
        self.state = "content"
        if self.is_item and text[0] in ",]":
            if text[0] == ",":
                self.pending, self.state = space + ",", "item"
            self.buffer = text[1:]
        return True
