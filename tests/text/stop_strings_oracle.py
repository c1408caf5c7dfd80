"""What stop strings mean, by one search for each (Knuth, Morris and Pratt 1977)."""

from __future__ import annotations

from collections.abc import Sequence


class SeparateSearches:
    """As :class:`quire.text.stop_strings.StopStrings`, whose definition it is."""

    def __init__(self, stop: Sequence[str], include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._include = include_in_output
        self._held = ""
        self._stop = [(text, _borders(text)) for text in stop]
        self._lengths = [0] * len(stop)  # Of each, how much the text so far ends with.

    def add(self, text: str, may_end: bool = True) -> str:
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
