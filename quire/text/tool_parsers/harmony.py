"""gpt-oss: messages in Harmony's format whose recipient is ``functions.name``."""

from __future__ import annotations

from quire.text.json_scanner import JsonScanner
from quire.text.marks import SPACE
from quire.text.reasoning_parsers.harmony import MARKS, HarmonyPiece, HarmonyReader
from quire.text.tool_parsers.interface import CallDelta, Parsed
from quire.text.tool_parsers.parser import Schemas


class HarmonyParser:
    """Messages to functions; it reads what :class:`StateParser` reads of other formats.

    Messages to others are content with their marks; the parser of reasoning comes first and
    leaves none.

    Source: OpenAI's description of the Harmony response format.
    """

    marks = MARKS

    def __init__(self, schemas: Schemas | None = None) -> None:
        self.errors: list[tuple[int, str]] = []
        self._reader = HarmonyReader()
        self._scanner: JsonScanner | None = None
        self._num_calls = 0
        self._given = False
        self._is_broken = False
        self._space: list[str] = []

    def add(self, text: str) -> Parsed:
        """Take the next piece and return what is certain now."""
        parsed = Parsed()
        for piece in self._reader.add(text):
            self._read(parsed, piece)
        return parsed

    def flush(self) -> Parsed:
        """Return what was held back; the answer has ended."""
        parsed = Parsed()
        for piece in self._reader.flush():
            self._read(parsed, piece)
        self._end(parsed)
        return parsed

    def _read(self, parsed: Parsed, piece: HarmonyPiece) -> None:
        if not piece.header.is_call:
            self._end(parsed)
            parsed.content += piece.text
        elif piece.role == "header":
            self._end(parsed)
            self._scanner, self._space = JsonScanner(), []
            self._given = self._is_broken = False
            parsed.calls.append(CallDelta(self._num_calls, piece.header.function))
            self._num_calls += 1
        elif piece.role == "end":
            self._end(parsed)
        elif self._scanner is not None:
            self._arguments(parsed, piece.text, self._scanner)

    def _arguments(self, parsed: Parsed, text: str, scanner: JsonScanner) -> None:
        """Pass on the next of a call's arguments."""
        if not self._given:
            text = text.lstrip(SPACE)
            if not text:
                return
            self._given = True
            if text[0] != "{":
                self._break_off("they must begin with a brace")
        end = 0
        if not self._is_broken and not scanner.done:
            end = scanner.feed(text)
            if scanner.error:
                self._break_off(scanner.error)
        shown, rest = text[:end], text[end:]
        if not self._is_broken:
            self._space.append(rest)
            is_space, rest = not rest.strip(SPACE), ""
            if not is_space:
                self._break_off("something follows them")
                rest = "".join(self._space)
        if shown or rest:
            parsed.calls.append(CallDelta(self._num_calls - 1, None, shown + rest))

    def _break_off(self, reason: str) -> None:
        self._is_broken = True
        self.errors.append((self._num_calls - 1, reason))

    def _end(self, parsed: Parsed) -> None:
        """End the call under way."""
        if self._scanner is None:
            return
        if not self._given:
            parsed.calls.append(CallDelta(self._num_calls - 1, None, "{}"))
        elif not self._is_broken and not self._scanner.done:
            self._break_off("they end in the middle")
        self._scanner = None
