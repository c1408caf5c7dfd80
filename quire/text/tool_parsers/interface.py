"""The interface of tool-call parsers: text in pieces to content and calls, of no one format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class CallDelta:
    """New text of one call.

    Attributes:
        index: The call's place among the answer's calls.
        name: The function; given once, with the call's first delta.
        arguments: More of the arguments' JSON text.
    """

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Parsed:
    """The content and calls that a piece of text turned out to hold.

    Attributes:
        content: Text for the reader.
        calls: News of calls, in order.
    """

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def join(self, more: Parsed) -> None:
        """Add the result of the next piece."""
        self.content += more.content
        self.calls += more.calls


class ToolParser(Protocol):
    """Reads one answer. The joined results do not depend on how the text is cut.

    Text that only looks like a call is content, unchanged. A call is given away once its name and
    the opening brace of its arguments were read; what is wrong after that is passed on as the
    model wrote it and named in ``errors``.
    """

    #: Calls whose arguments are no JSON object: place and reason.
    errors: list[tuple[int, str]]

    def add(self, text: str) -> Parsed:
        """Take the next piece and return what is certain now."""
        ...

    def flush(self) -> Parsed:
        """Return what was held back; the answer has ended."""
        ...
