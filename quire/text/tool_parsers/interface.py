"""Results of parsers of tool calls: content and calls, of no one format."""

from __future__ import annotations

from dataclasses import dataclass, field


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
