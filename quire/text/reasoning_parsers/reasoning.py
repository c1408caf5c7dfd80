"""Formats in which models mark their reasoning, by the names of ``--reasoning-parser``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from quire.core.structured_outputs import StructuredOutputs
from quire.text.reasoning_parsers.harmony_reasoning import HarmonyReasoning
from quire.text.reasoning_parsers.marked_reasoning import END, MarkedReasoning
from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.tokenizer import Tokenizer


class Splitter(Protocol):
    """Splits one answer; the joined parts do not depend on how the text is cut."""

    def add(self, text: str) -> tuple[str, str]:
        """Take the next piece and return what is certain: reasoning and content."""
        ...

    def flush(self) -> tuple[str, str]:
        """Return what was held back; the answer has ended."""
        ...


class ReasoningFormat(Protocol):
    """The format in which a family of models marks its reasoning."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks; where they are special tokens they must be shown."""
        ...

    def begins_open(self, prompt: str) -> bool:
        """Say whether an answer to ``prompt`` begins inside the reasoning."""
        ...

    def is_left_open_by(self, text: str) -> bool:
        """Say whether a message that is gone on with ends inside the reasoning."""
        ...

    def create_splitter(self, is_open: bool) -> Splitter:
        """Return a splitter of one answer, which begins inside the reasoning if ``is_open``."""
        ...

    def count_tokens(
        self, is_open: bool, detokenizer: Detokenizer, token_ids: Sequence[int]
    ) -> int:
        """Return how many of an answer's tokens are reasoning, its marks counted."""
        ...

    def begin_answer(self, asked: StructuredOutputs, tokenizer: Tokenizer) -> StructuredOutputs:
        """Add the marks that stand between reasoning and an answer of the form asked for."""
        ...

    def follow_reasoning(self, asked: StructuredOutputs, is_open: bool) -> StructuredOutputs:
        """Let a constraint on answers begin after the reasoning."""
        ...


_THINK = MarkedReasoning(always=False)
#: By vLLM's names.
FORMATS: dict[str, ReasoningFormat] = {
    "qwen3": _THINK,
    "deepseek_r1": replace(_THINK, always=True),
    "glm45": _THINK,
    "granite": MarkedReasoning(
        always=False,
        starts=("Here is my thought process:", "Here's my thought process:"),
        ends=("Here is my response:", "Here's my response:"),
    ),
    "openai_gptoss": HarmonyReasoning(),
}
#: Other names of the same formats.
ALIASES = {"glm47": "glm45", "deepseek_v3": "qwen3"}


def detect_reasoning(templates: Iterable[str]) -> str | None:
    """Return the name of the format that a model's templates write; None when there is none.

    The careful one: text is reasoning only after a mark, in the prompt or in the answer.
    """
    sources = list(templates)
    if any("<|channel|>analysis" in source for source in sources):
        return "openai_gptoss"
    if any(FORMATS["granite"].marks[0] in source for source in sources):
        return "granite"
    return "qwen3" if any(END in source for source in sources) else None
