"""Reasoning in Harmony's format: the channel ``analysis``; the user reads the other channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from quire.core.structured_outputs import StructuredOutputs
from quire.text.grammars.harmony_grammar import final_header
from quire.text.reasoning_parsers.harmony import (
    ANALYSIS,
    MARKS,
    HarmonyPiece,
    HarmonyReader,
    Header,
)
from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class HarmonyReasoning:
    """gpt-oss; a ``quire.text.reasoning_parsers.reasoning.ReasoningFormat``.

    Source: OpenAI's description of the Harmony response format; which channel is what, vLLM's
    ``harmony_utils.py``.
    """

    marks: ClassVar[tuple[str, ...]] = MARKS

    def begins_open(self, prompt: str) -> bool:
        """Say whether the prompt began the analysis."""
        return prompt.endswith(ANALYSIS)

    def is_left_open_by(self, text: str) -> bool:
        """Say whether a message that is gone on with ends inside the reasoning."""
        return ANALYSIS in text and "<|" not in text[text.rfind(ANALYSIS) + len(ANALYSIS) :]

    def create_splitter(self, is_open: bool) -> HarmonySplitter:
        """Return a splitter of one answer, which begins inside the analysis if ``is_open``."""
        return HarmonySplitter(is_open)

    def count_tokens(
        self, is_open: bool, detokenizer: Detokenizer, token_ids: Sequence[int]
    ) -> int:
        """Return how many of an answer's tokens are reasoning, its marks counted."""
        reader = _reader(is_open)
        count = num_held = 0
        for token_id in token_ids:
            pieces = reader.add(detokenizer.add([token_id]))
            num_held += 1
            header = pieces[-1].header if pieces else reader.header
            if header is not None:  # else of a message whose header is not complete
                count += num_held if header.is_reasoning else 0
                num_held = 0
        return count

    def begin_answer(self, asked: StructuredOutputs, tokenizer: Tokenizer) -> StructuredOutputs:
        """Put the analysis and the header of the final message before what was asked for."""
        return replace(asked, before=final_header(tokenizer))

    def follow_reasoning(self, asked: StructuredOutputs, is_open: bool) -> StructuredOutputs:
        """Return ``asked``: its grammar has the reasoning already."""
        return asked


class HarmonySplitter:
    """Splits one answer; the joined parts do not depend on how the text is cut.

    Messages of the same kind are joined by a new line. Calls of functions are content, with
    their marks, which the parser of tool calls reads; where there is none, they are shown.

    Args:
        is_open: The answer begins inside the analysis.
    """

    def __init__(self, is_open: bool) -> None:
        self._reader = _reader(is_open)
        self._parts = {True: "", False: ""}
        self._given = {True: False, False: False}
        self._separate = False

    def add(self, text: str) -> tuple[str, str]:
        """Take the next piece and return what is certain: reasoning and content."""
        return self._take(self._reader.add(text))

    def flush(self) -> tuple[str, str]:
        """Return what was held back; the answer has ended."""
        return self._take(self._reader.flush())

    def _take(self, pieces: list[HarmonyPiece]) -> tuple[str, str]:
        self._parts = {True: "", False: ""}
        for piece in pieces:
            if piece.header.is_call:
                self._parts[False] += piece.text
            elif piece.role == "header":
                self._separate = True
            elif piece.role == "body":
                self._add(piece.header.is_reasoning, piece.text)
        return self._parts[True], self._parts[False]

    def _add(self, is_reasoning: bool, text: str) -> None:
        if self._separate and self._given[is_reasoning]:
            text = "\n" + text
        self._separate = False
        self._given[is_reasoning] = True
        self._parts[is_reasoning] += text


def _reader(is_open: bool) -> HarmonyReader:
    return HarmonyReader(Header("analysis", "") if is_open else None)
