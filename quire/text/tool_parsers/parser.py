"""The states that all formats share: content, a call, what follows it; a format adds its marks."""

from __future__ import annotations

from quire.text.tool_parsers.call_reader import CallReader
from quire.text.tool_parsers.interface import CallDelta, Parsed

SPACE = " \t\n\r"


def held_back(text: str, mark: str) -> int:
    """Return how many characters at the end of ``text`` may begin ``mark``."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0


class StateParser:
    """Runs the state's method on the buffer until it asks for more text.

    A state's method returns False when it needs more. Formats define the first state and what
    follows a call; see :class:`quire.text.tool_parsers.interface.ToolParser`.

    Attributes:
        state: Name of the method that reads next.
        buffer: Text not yet understood.
        pending: Text before the call under way, which is content if it turns out to be none.
        reader: Of the call under way.
        num_calls: Calls given away.
    """

    #: Marks that begin or end calls; where they are special tokens they must be shown.
    marks: tuple[str, ...] = ()
    needs_arguments = False
    #: What ends a call whose arguments are broken; the answer's end otherwise.
    end_mark = ""

    def __init__(self) -> None:
        self.state = "content"
        self.buffer = ""
        self.pending = ""
        self.reader = CallReader(0)
        self.num_calls = 0
        self.errors: list[tuple[int, str]] = []

    def add(self, text: str) -> Parsed:
        """Take the next piece and return what is certain now."""
        self.buffer += text
        parsed = Parsed()
        while self.buffer and getattr(self, f"in_{self.state}")(parsed):
            pass
        return parsed

    def flush(self) -> Parsed:
        """Return what was held back; the answer has ended."""
        parsed = Parsed()
        if self.state in ("call", "broken", "bare_arguments"):
            cut = self.reader.given and not self.reader.complete and self.state != "broken"
            if cut:
                self.errors.append((self.num_calls - 1, "they end in the middle"))
            elif not self.reader.given:
                parsed.content = self.pending + self.reader.raw + self.buffer
        elif self.state == "after" and self.end_mark.startswith(self.buffer.strip(SPACE)):
            pass
        else:
            rest = self.pending + self.buffer
            parsed.content = "" if self.num_calls and not rest.strip(SPACE) else rest
        self.buffer = self.pending = ""
        self.state = "content"
        return parsed

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

    def find_mark(self, parsed: Parsed, mark: str) -> bool:
        """Show the content before ``mark`` and take it; space before it waits in ``pending``."""
        at = self.buffer.find(mark)
        if at < 0:
            keep = held_back(self.buffer, mark)
            text = self.buffer[: len(self.buffer) - keep]
        else:
            text = self.buffer[:at]
        shown = text.rstrip(SPACE)
        if shown:
            parsed.content += self.pending + shown
            self.pending = ""
        self.pending += text[len(shown) :]
        if at < 0:
            self.buffer = self.buffer[len(text) :]
            return False
        self.pending += mark
        self.buffer = self.buffer[at + len(mark) :]
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
        if reader.done or (reader.error and reader.complete):
            self.state = "after"
        elif reader.error and reader.given:
            self.errors.append((self.num_calls - 1, reader.error))
            self.state = "broken"
        elif reader.error:
            self.not_a_call(parsed)
        return bool(reader.done or reader.error)

    def not_a_call(self, parsed: Parsed) -> None:
        """Show what looked like a call as content."""
        parsed.content += self.pending + self.reader.raw
        self.pending = ""
        self.state = "content"

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
