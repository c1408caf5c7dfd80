"""Llama 3: the answer is ``{"name": ..., "parameters": {...}}`` alone, or several of them.

Between them are semicolons, commas, space or nothing, as vLLM's parser reads them.
"""

from __future__ import annotations

from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.parser import Schemas, StateParser

PYTHON_TAG = "<|python_tag|>"


class Llama3JsonParser(StateParser):
    """Objects without marks.

    Calls begin with the answer or after ``<|python_tag|>``; JSON elsewhere is content.
    """

    marks = (PYTHON_TAG,)
    begin_marks = (PYTHON_TAG,)
    first_state = "start"
    needs_arguments = True

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self.state = "start"

    def in_start(self, parsed: Parsed) -> bool:
        """Expect a call; anything else makes the rest content."""
        space, text = self.split_space()
        if not text or (PYTHON_TAG.startswith(text) and text != PYTHON_TAG):
            return False
        if text.startswith(PYTHON_TAG):
            self.pending += space + PYTHON_TAG
            self.buffer = text[len(PYTHON_TAG) :]
            return True
        if text[0] == "{":
            self.begin_call(self.pending + space, len(space))
        else:
            self.state = "content"
        return True

    def in_after(self, parsed: Parsed) -> bool:
        """Expect a separator and another call, or content."""
        space, text = self.split_space()
        if not text:
            return False
        self.state = "content"
        size = 1 if text[0] in ";," else 0
        if size or text[0] == "{":
            self.pending, self.buffer = space + text[:size], text[size:]
            self.state = "start"
        return True
