"""Splits an answer into reasoning and content at the marks of ``<think>`` models, as it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.text.detokenizer import Detokenizer
from quire.text.tool_parsers.parser import SPACE, held_back

START, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its reasoning.

    Attributes:
        always: It reasons without a start mark, unless the prompt closed the reasoning already.
        start, end: The marks.
    """

    always: bool
    start: str = START
    end: str = END

    def begins_open(self, prompt: str) -> bool:
        """Say whether an answer to ``prompt`` begins inside the reasoning.

        A template may open it (``<think>``) or close it (``<think></think>``) at the prompt's end.
        """
        tail = prompt.rstrip(SPACE)
        if tail.endswith(self.start):
            return True
        return self.always and not tail.endswith(self.end)

    def is_left_open_by(self, text: str) -> bool:
        """Say whether a message that is gone on with ends inside the reasoning."""
        return text.rfind(self.start) > text.rfind(self.end)


#: By the names of ``--reasoning-parser``.
FORMATS = {
    "qwen3": ReasoningFormat(always=False),
    "deepseek_r1": ReasoningFormat(always=True),
}


def detect_reasoning(templates: Iterable[str]) -> str | None:
    """Return the name of the format that a model's templates write; None when there is none.

    The careful one: text is reasoning only after a mark, in the prompt or in the answer.
    """
    return "qwen3" if any(END in source for source in templates) else None


class ReasoningSplitter:
    """Splits one answer; the joined parts do not depend on how the text is cut.

    White space around the reasoning and before the content belongs to neither.

    Args:
        form: The marks.
        is_open: The answer begins inside the reasoning.

    Attributes:
        open: The reasoning has not ended.
    """

    def __init__(self, form: ReasoningFormat, is_open: bool) -> None:
        self._form = form
        self._state = "open" if is_open else "start"
        self._buffer = ""
        self._trim = is_open
        self._may_repeat = is_open  # a model may write the mark that the prompt has
        self._was_open = is_open

    def add(self, text: str) -> tuple[str, str]:
        """Take the next piece and return what is certain: reasoning and content."""
        self._buffer += text
        reasoning = ""
        if self._state == "start":
            self._begin()
        if self._state == "open":
            reasoning = self._reason()
        return reasoning, self._content() if self._state == "content" else ""

    def flush(self) -> tuple[str, str]:
        """Return what was held back; the answer has ended."""
        rest, self._buffer = self._buffer, ""
        if self._state == "open":
            return ("" if not rest.strip(SPACE) else rest.rstrip(SPACE)), ""
        return "", rest if self._state == "start" or rest.strip(SPACE) else ""

    def _begin(self) -> None:
        text = self._buffer.lstrip(SPACE)
        mark = self._form.start
        if text.startswith(mark):
            self._buffer, self._state = text[len(mark) :], "open"
            self._trim = self._was_open = True
        elif not mark.startswith(text):
            self._state = "content"

    def _reason(self) -> str:
        if self._trim:
            self._buffer = self._buffer.lstrip(SPACE)
            mark = self._form.start
            if mark.startswith(self._buffer) and self._buffer != mark:
                return ""
            if self._may_repeat and self._buffer.startswith(mark):
                self._buffer, self._may_repeat = self._buffer[len(mark) :], False
                return self._reason()
            self._trim = False
        at = self._buffer.find(self._form.end)
        if at < 0:
            text = self._buffer[: len(self._buffer) - held_back(self._buffer, self._form.end)]
            shown = text.rstrip(SPACE)
            self._buffer = self._buffer[len(shown) :]
            return shown
        shown = self._buffer[:at].rstrip(SPACE)
        self._buffer = self._buffer[at + len(self._form.end) :]
        self._state = "content"
        return shown

    def _content(self) -> str:
        if self._was_open:
            self._buffer = self._buffer.lstrip(SPACE)
            if not self._buffer:
                return ""
            self._was_open = False
        text, self._buffer = self._buffer, ""
        return text


def count_reasoning_tokens(
    form: ReasoningFormat, is_open: bool, detokenizer: Detokenizer, token_ids: Sequence[int]
) -> int:
    """Return how many of an answer's tokens are reasoning, its marks counted."""
    text = ""
    for count, token_id in enumerate(token_ids, start=1):
        text += detokenizer.add([token_id])
        if not is_open:
            text = text.lstrip(SPACE)
            if text.startswith(form.start):
                is_open = True
            elif not form.start.startswith(text):
                return 0
        if is_open:
            if form.end in text:
                return count
            text = text[-len(form.end) :]
    return len(token_ids) if is_open else 0
