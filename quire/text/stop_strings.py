"""Finds stop strings in text that arrives in pieces; it ends no request itself.

The stop string that is complete first wins, whatever the pieces; of several that end at the same
character, the first listed. vLLM has the same rule token by token, where a token may complete two.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from quire.kernels.cpu.native import native


class StopStrings:
    """The search in one sequence's text.

    Text that may yet turn out to be a stop string is held back. All stop strings are searched for
    together, in an automaton whose states are made as texts reach them. A character costs the
    same however many stop strings there are; a stop string costs the part of it that texts reach.

    Args:
        stop: Stop strings, at least one, none of them empty.
        include_in_output: Whether to keep the stop string that was found in the text.

    Attributes:
        matched: The stop string that was found; None so far.
    """

    def __init__(self, stop: Sequence[str], include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._stop = stop
        self._include = include_in_output
        lengths = array("q", map(len, stop))
        starts = array("q", accumulate(lengths, initial=0))
        symbols = _symbols("".join(stop) + "\0")  # one comes after each
        self._automaton = native.PatternAutomaton(
            symbols, len(symbols), starts, lengths, len(lengths)
        )
        self._state = 0
        self._held = ""

    def for_sequence(self) -> StopStrings:
        """Return the search for the same strings in another sequence's text."""
        other = StopStrings.__new__(StopStrings)
        other.matched, other._stop, other._include = None, self._stop, self._include
        other._automaton, other._state, other._held = self._automaton, 0, ""
        return other

    def add(self, text: str, may_end: bool = True) -> str:
        """Take the next text and return what is certain to be shown; may be empty.

        Args:
            text: Text of any length.
            may_end: Whether a stop string that is complete inside ``text`` ends the sequence. One
                that begins here and is complete in later text does in any case.
        """
        if self.matched is not None:
            return ""
        window = self._held + text
        self._state, num_read, found, num_open = self._automaton.search(
            self._state, _symbols(text), len(text), may_end
        )
        if found >= 0:
            self.matched = self._stop[found]
            end = len(self._held) + num_read
            self._held = ""
            return window[: end if self._include else end - len(self.matched)]
        shown = len(window) - num_open
        self._held = window[shown:]
        return window[:shown]

    def flush(self) -> str:
        """Return what was held back; the sequence has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _symbols(text: str) -> memoryview:
    """Return the code points of a text, as 32-bit integers."""
    return memoryview(text.encode("utf-32-le", "surrogatepass")).cast("i")
