"""Finds stop strings in text that arrives in pieces; it ends no request itself.

The stop string that is complete first wins, whatever the pieces; of several that end at the same
character, the first listed. vLLM has the same rule token by token, where a token may complete two.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The search in one sequence's text.

    Text that may yet turn out to be a stop string is held back. Each character costs a constant
    number of steps per stop string, however long these are (Knuth, Morris and Pratt 1977).

    Args:
        stop: Not empty, without empty strings.
        include_in_output: Keep the stop string that was found in the text.

    Attributes:
        matched: The stop string that was found; None so far.
    """

    def __init__(self, stop: Sequence[str], include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._include = include_in_output
        self._held = ""
        self._stop = [(text, _borders(text)) for text in stop]
        self._lengths = [0] * len(stop)  # Of each, how much the text so far ends with.

    def add(self, text: str, may_end: bool = True) -> str:
        """Take the next text and return what is certain to be shown; may be empty.

        Args:
            text: Any length.
            may_end: Whether a stop string that is complete inside ``text`` ends the sequence. One
                that begins here and is complete in later text does in any case.
        """
        if self.matched is not None:
            return ""
        window = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            for index, (stop, borders) in enumerate(self._stop):
                length = self._lengths[index]
                while length and stop[length] != character:
                    length = borders[length - 1]
                length += stop[length] == character
                self._lengths[index] = length
                if length == len(stop):
                    if not may_end:
                        self._lengths[index] = borders[-1]
                        continue
                    self.matched = stop
                    self._held = ""
                    return window[: end if self._include else end - length]
        shown = len(window) - max(self._lengths)
        self._held = window[shown:]
        return window[:shown]

    def flush(self) -> str:
        """Return what was held back; the sequence has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _borders(text: str) -> list[int]:
    """For each prefix of ``text``, the length of its longest proper prefix that also ends it."""
    borders = [0] * len(text)
    length = 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = borders[length - 1]
        length += text[i] == text[length]
        borders[i] = length
    return borders
