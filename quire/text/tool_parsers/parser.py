"""The states that all formats share: content, a call, what follows it; a format adds its marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.text.json_scanner import JsonScanner
from quire.text.marks import SPACE, held_back
from quire.text.tool_parsers.call_reader import CallReader
from quire.text.tool_parsers.interface import CallDelta, Parsed

#: JSON Schemas of the functions' parameters, by name.
Schemas = Mapping[str, Mapping[str, Any]]
#: Longest text before a call's arguments, in characters; what is longer is no call.
MAX_HEAD = 256
#: Characters that are read at a time, so that what is left is never long when it is copied.
_AT_ONCE = 4096


class StateParser:
    """Runs the state's method on the buffer until it asks for more text.

    A state's method returns False when it needs more. Formats define what begins a call and what
    follows it. The joined results do not depend on how the text is cut. Text that only looks like a
    call is content, unchanged. A call is given away once its name and the opening brace of its
    arguments were read; what is wrong after that is passed on as the model wrote it.

    Args:
        schemas: Schemas of the functions that may be called; in some formats only they tell text
            from numbers.

    Attributes:
        state: Name of the method that reads next.
        buffer: Text not yet understood.
        pending: Text before the call under way, which is content if it turns out to be none.
        reader: The reader of the call under way, where the call is one object.
        scanner: The scanner of arguments that stand alone.
        num_calls: Calls given away.
        awaited: End marks of the last call that did not follow it; they are not shown later.
        errors: Calls whose arguments are no JSON object: place and reason.
    """

    #: Marks that begin or end calls; where they are special tokens they must be shown.
    marks: tuple[str, ...] = ()
    needs_arguments = False
    #: The marks that begin a call, and the state after them.
    begin_marks: tuple[str, ...] = ()
    first_state = ""
    #: What ends a call whose arguments are broken; the answer's end otherwise.
    end_mark = ""
    #: The state that follows arguments that stand alone.
    after_arguments = "content"

    def __init__(self, schemas: Schemas | None = None) -> None:
        self.schemas: Schemas = schemas or {}
        self.state = "content"
        self.buffer = ""
        self.pending = ""
        self.reader = CallReader(0)
        self.scanner = JsonScanner()
        self.num_calls = 0
        self.awaited: tuple[str, ...] = ()
        self._after_surplus = "after"
        self._holds_space = False
        self._space: list[str] = []  # after the buffer, where that ends with space
        self.errors: list[tuple[int, str]] = []

    def add(self, text: str) -> Parsed:
        """Take the next piece and return what is certain now."""
        parsed = Parsed()
        for begin in range(0, len(text), _AT_ONCE):
            self.read(parsed, text[begin : begin + _AT_ONCE])
        return parsed

    def read(self, parsed: Parsed, text: str) -> None:
        """Take a piece that is not long, and add what is certain now."""
        if self._holds_space and not text.strip(SPACE):
            self._space.append(text)  # what follows decides: till then nothing is looked at again
            return
        self.take_space()
        self.buffer += text
        while self.buffer and getattr(self, f"in_{self.state}")(parsed):
            pass
        held = self.buffer or (self.pending if self.state == "content" else "")
        # Undecided with space at its end, which more of it does not change.
        self._holds_space = held.endswith(tuple(SPACE))

    def take_space(self) -> None:
        """Join space that has come after the buffer to it."""
        self.buffer += "".join(self._space)
        self._space.clear()
        self._holds_space = False

    def flush(self) -> Parsed:
        """Return what was held back; the answer has ended."""
        parsed = Parsed()
        self.take_space()
        if self.state == "call" and not self.reader.given:
            parsed.content = self.pending + self.reader.raw + self.buffer
        elif self.state == "broken":
            if self.buffer:  # what might have begun the end mark
                parsed.calls.append(CallDelta(self.num_calls - 1, None, self.buffer))
        elif self.is_in_arguments():
            self.errors.append((self.num_calls - 1, "they end in the middle"))
        elif self.state != "call" and not (self.state == "after" and self.ends_call(self.buffer)):
            rest = self.pending + self.buffer
            parsed.content = "" if self.num_calls and not rest.strip(SPACE) else rest
        self.buffer = self.pending = ""
        self.state = "content"
        return parsed

    def ends_call(self, rest: str) -> bool:
        """Say whether ``rest`` is what follows a call, or its beginning."""
        return self.end_mark.startswith(rest.strip(SPACE))

    def is_in_arguments(self) -> bool:
        """Say whether a call was given away and its arguments were not."""
        return self.state == "bare_arguments" or (
            self.state == "call" and self.reader.given and not self.reader.complete
        )

    def name_call(self, parsed: Parsed, name: str, arguments: str = "") -> None:
        """Give a call away with its name and what there is of its arguments."""
        parsed.calls.append(CallDelta(self.num_calls, name, arguments))
        self.num_calls += 1
        self.pending = ""

    def begin_arguments(self, parsed: Parsed, name: str, consumed: int) -> None:
        """Give a call's name away; its arguments stand alone after ``consumed`` characters."""
        self.name_call(parsed, name)
        self.buffer = self.buffer[consumed:]
        self.scanner, self.state = JsonScanner(), "bare_arguments"

    def break_off(self, reason: str) -> None:
        """Pass on the rest of the last call's arguments, which are wrong."""
        self.errors.append((self.num_calls - 1, reason))
        self.state = "broken"

    def show_pending(self, parsed: Parsed) -> None:
        """Show what looked like the beginning of calls as content."""
        parsed.content += self.pending
        self.pending, self.state = "", "content"

    def begin_call(self, pending: str, consumed: int) -> None:
        """Read a call after ``consumed`` characters; ``pending`` is shown if it is none."""
        self.pending = pending
        self.buffer = self.buffer[consumed:]
        self.reader = CallReader(self.num_calls, self.needs_arguments)
        self.state = "call"

    def split_space(self) -> tuple[str, str]:
        """Return the space that the buffer begins with, and the rest."""
        text = self.buffer.lstrip(SPACE)
        return self.buffer[: len(self.buffer) - len(text)], text

    def find_mark(self, parsed: Parsed, *marks: str) -> bool:
        """Show the content before the first mark and take it; space before it is pending."""
        found = [(at, mark) for mark in marks if (at := self.buffer.find(mark)) >= 0]
        at, mark = min(found, default=(-1, ""))
        if at < 0:
            keep = max(held_back(self.buffer, mark) for mark in marks)
            at = len(self.buffer) - keep
        text = self.buffer[:at]
        shown = text.rstrip(SPACE)
        if shown:
            parsed.content += self.pending + shown
            self.pending = ""
        self.pending += text[len(shown) :] + mark
        self.buffer = self.buffer[at + len(mark) :]
        return bool(mark)

    def find_next(self, parsed: Parsed, *marks: str) -> bool:
        """Find what begins a call, as :meth:`find_mark` does, and drop marks that are awaited."""
        while self.find_mark(parsed, *marks, *self.awaited):
            end = next((mark for mark in self.awaited if self.pending.endswith(mark)), None)
            if end is None:
                self.awaited = ()
                return True
            self.pending = self.pending.removesuffix(end)
            self.awaited = tuple(mark for mark in self.awaited if mark != end)
        return False

    def in_content(self, parsed: Parsed) -> bool:
        """Look for what begins a call."""
        if not self.find_next(parsed, *self.begin_marks):
            return False
        self.state = self.first_state
        return True

    def in_call(self, parsed: Parsed) -> bool:
        """Read the object of a call."""
        reader = self.reader
        was_given = reader.given
        position, deltas = reader.feed(self.buffer)
        self.buffer = self.buffer[position:]
        if reader.done:
            deltas += reader.ending()
        if reader.given and not was_given:
            self.num_calls += 1
            self.pending = ""
        parsed.calls += deltas
        if reader.done:
            self.state, self._after_surplus = "surplus", "after"
        elif reader.error and reader.complete:
            self.state = "after"
        elif reader.error and reader.given:
            self.break_off(reader.error)
        elif reader.error:
            self.pending += reader.raw
            self.show_pending(parsed)
        return bool(reader.done or reader.error)

    def in_bare_arguments(self, parsed: Parsed) -> bool:
        """Read an object that has its name in front of it."""
        end = self.scanner.feed(self.buffer)
        if end:
            parsed.calls.append(CallDelta(self.num_calls - 1, None, self.buffer[:end]))
            self.buffer = self.buffer[end:]
        if self.scanner.error:
            self.break_off(self.scanner.error)
        elif self.scanner.done:
            self.state, self._after_surplus = "surplus", self.after_arguments
        return bool(self.scanner.error or self.scanner.done)

    def in_surplus(self, parsed: Parsed) -> bool:
        """Drop a brace too many, which models write after a call."""
        _, text = self.split_space()
        if not text:
            return False
        if text[0] == "}":
            self.buffer = text[1:]
        self.state = self._after_surplus
        return True

    def in_broken(self, parsed: Parsed) -> bool:
        """Pass the rest of broken arguments on, up to the end mark."""
        at = self.buffer.find(self.end_mark) if self.end_mark else -1
        if at < 0:
            keep = held_back(self.buffer, self.end_mark) if self.end_mark else 0
            text = self.buffer[: len(self.buffer) - keep]
        else:
            text = self.buffer[:at]
            self.state = "after"
        if text:
            parsed.calls.append(CallDelta(self.num_calls - 1, None, text))
        self.buffer = self.buffer[len(text) :]
        return at >= 0
