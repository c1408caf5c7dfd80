"""Llama 3.2 and 4 and others: a Python list of calls, ``[f(a=1, b="x"), g()]``."""

from __future__ import annotations

import json
import re

from quire.text.tool_parsers.argument_types import as_json
from quire.text.tool_parsers.interface import CallDelta, Parsed
from quire.text.tool_parsers.parser import MAX_HEAD, Schemas, StateParser
from quire.text.tool_parsers.python_literal import LiteralScanner, read_literal

START, END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"([A-Za-z_][\w.\-]*)\(")
_NAME_BEGUN = re.compile(r"[A-Za-z_][\w.\-]*")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=")
_KEY_BEGUN = re.compile(r"[A-Za-z_]\w*\s*")


class PythonicParser(StateParser):
    """A list of calls in Python.

    Calls begin with the answer or after ``<|python_start|>``; brackets elsewhere are content. A
    call is given away with its first argument, or at its end when it has none.

    Source: Meta's description of Llama 3.2's zero-shot calls; vLLM's llama4_pythonic.
    """

    marks = (START, END)
    begin_marks = (START,)
    first_state = "start"

    def __init__(self, schemas: Schemas | None = None) -> None:
        super().__init__(schemas)
        self.state = "start"
        self._name = ""
        self._key = ""
        self._value: list[str] = []
        self._scanner = LiteralScanner()
        self._num_arguments = 0
        self._given = False

    def is_in_arguments(self) -> bool:
        """Say whether a call was given away and its arguments were not."""
        return self._given and self.state in ("key", "value", "next")

    def flush(self) -> Parsed:
        """Return what was held back; the answer has ended."""
        if self.state == "value" and not self._given:
            self.buffer = "".join(self._value) + self.buffer
        elif self.state == "closed":
            self.buffer = ""  # a mark that was cut
        return super().flush()

    def in_start(self, parsed: Parsed) -> bool:
        """Expect a list of calls; anything else makes the rest content."""
        space, text = self.split_space()
        if text.startswith(START):
            self.pending += space + START
            self.buffer = text[len(START) :]
            return True
        if not text or START.startswith(text):
            return False
        if text[0] == "[":
            self._take(len(space) + 1)
            self.state = "item"
        else:
            self.state = "content"
        return True

    def in_item(self, parsed: Parsed) -> bool:
        """Expect a call."""
        space, text = self.split_space()
        name = _NAME.match(text, 0, MAX_HEAD)
        if name is not None:
            self._name, self._num_arguments, self._given = name[1], 0, False
            self._take(len(space) + name.end())
            self.state = "key"
            return True
        if not text or (len(text) < MAX_HEAD and _NAME_BEGUN.fullmatch(text)):
            return False
        self.show_pending(parsed)
        return True

    def in_key(self, parsed: Parsed) -> bool:
        """Expect an argument's name, or the end of the call."""
        space, text = self.split_space()
        key = _KEY.match(text, 0, MAX_HEAD)
        if key is not None:
            self._key, self._value, self._scanner = key[1], [], LiteralScanner()
            self._take(len(space) + key.end())
            self.state = "value"
        elif text[:1] == ")":
            self._end(parsed, len(space) + 1)
        elif not text or (len(text) < MAX_HEAD and _KEY_BEGUN.fullmatch(text)):
            return False
        else:
            self._fail(parsed, "an argument has no name")
        return True

    def in_value(self, parsed: Parsed) -> bool:
        """Read an argument."""
        end = self._scanner.feed(self.buffer)
        text = self.buffer[:end]
        self._value.append(text)
        self.buffer = self.buffer[len(text) :]
        value = "".join(self._value) if end is not None else ""
        error, written = self._scanner.error, ""
        if end is not None and not error:
            try:
                written = as_json(read_literal(value))
            except ValueError as problem:
                error = str(problem)
        if error:
            self.buffer = value + self.buffer
            self._fail(parsed, error)
        elif end is not None:
            self.pending += "" if self._given else value
            before = ", " if self._num_arguments else "{"
            self._num_arguments += 1
            self._give(parsed, f"{before}{json.dumps(self._key)}: {written}")
            self.state = "next"
        return end is not None

    def in_next(self, parsed: Parsed) -> bool:
        """Expect what ended the argument: the scanner saw it."""
        if self.buffer[0] == ",":
            self._take(1)
            self.state = "key"
        else:
            self._end(parsed, 1)
        return True

    def in_after(self, parsed: Parsed) -> bool:
        """Expect the next call, or the end of the list."""
        space, text = self.split_space()
        if not text:
            return False
        self.state = "content"
        if text[0] == ",":
            self.pending, self.buffer, self.state = space + ",", text[1:], "item"
        elif text[0] == "]":
            self.buffer, self.state = text[1:], "closed"
        return True

    def in_closed(self, parsed: Parsed) -> bool:
        """Expect the mark after the list."""
        _, text = self.split_space()
        if END.startswith(text) and text != END:
            return False
        if text.startswith(END):
            self.buffer = text[len(END) :]
        self.state = "content"
        return True

    def _take(self, size: int) -> None:
        if not self._given or self.state in ("start", "item"):
            self.pending += self.buffer[:size]
        self.buffer = self.buffer[size:]

    def _give(self, parsed: Parsed, arguments: str) -> None:
        if self._given:
            parsed.calls.append(CallDelta(self.num_calls - 1, None, arguments))
        else:
            self.name_call(parsed, self._name, arguments)
            self._given = True

    def _end(self, parsed: Parsed, size: int) -> None:
        self._take(size)
        self._give(parsed, "}" if self._num_arguments else "{}")
        self.pending, self.state = "", "after"

    def _fail(self, parsed: Parsed, reason: str) -> None:
        if self._given:
            self.break_off(reason)
        else:
            self.show_pending(parsed)
