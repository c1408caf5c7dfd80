"""Splits an answer into reasoning and content at marks such as ``<think>``, as it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.core.structured_outputs import StructuredOutputs
from quire.text.marks import SPACE, held_back
from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.tokenizer import Tokenizer

START, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class MarkedReasoning:
    """One piece of reasoning between two marks; a :class:`ReasoningFormat`.

    Attributes:
        always: Whether the model reasons without a start mark, unless the prompt closed the
            reasoning already.
        starts, ends: The marks, each spelled in one way or several. Grammars know the first ones.
    """

    always: bool
    starts: tuple[str, ...] = (START,)
    ends: tuple[str, ...] = (END,)

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return self.starts + self.ends

    def begins_open(self, prompt: str) -> bool:
        """Say whether an answer to ``prompt`` begins inside the reasoning.

        A template may open it (``<think>``) or close it (``<think></think>``) at the prompt's end.
        """
        tail = prompt.rstrip(SPACE)
        if tail.endswith(self.starts):
            return True
        return self.always and not tail.endswith(self.ends)

    def is_left_open_by(self, text: str) -> bool:
        """Say whether a message that is gone on with ends inside the reasoning."""
        return max(map(text.rfind, self.starts)) > max(map(text.rfind, self.ends))

    def create_splitter(self, is_open: bool) -> MarkedSplitter:
        """Return a splitter of one answer, which begins inside the reasoning if ``is_open``."""
        return MarkedSplitter(self, is_open)

    def count_tokens(
        self, is_open: bool, detokenizer: Detokenizer, token_ids: Sequence[int]
    ) -> int:
        """Return how many of an answer's tokens are reasoning, its marks counted."""
        text = ""
        longest = max(map(len, self.ends))
        for count, token_id in enumerate(token_ids, start=1):
            text += detokenizer.add([token_id])
            if not is_open:
                text = text.lstrip(SPACE)
                if text.startswith(self.starts):
                    is_open = True
                elif not any(mark.startswith(text) for mark in self.starts):
                    return 0
            if is_open:
                if any(mark in text for mark in self.ends):
                    return count
                text = text[-longest:]
        return len(token_ids) if is_open else 0

    def begin_answer(self, asked: StructuredOutputs, tokenizer: Tokenizer) -> StructuredOutputs:
        """Return ``asked``: the end of the reasoning is all there is before it."""
        return asked

    def follow_reasoning(self, asked: StructuredOutputs, is_open: bool) -> StructuredOutputs:
        """Let a constraint on answers begin after the reasoning."""
        start = "" if is_open else self.starts[0]
        return replace(asked, reasoning_end=self.ends[0], reasoning_start=start)


class MarkedSplitter:
    """Splits one answer; the joined parts do not depend on how the text is cut.

    White space around the reasoning and before the content belongs to neither.

    Args:
        form: The marks.
        is_open: The answer begins inside the reasoning.
    """

    def __init__(self, form: MarkedReasoning, is_open: bool) -> None:
        self._form = form
        self._state = "open" if is_open else "start"
        self._buffer = ""
        self._holds_space = False
        self._space: list[str] = []  # after the buffer, where that is space alone
        self._trim = is_open
        self._may_repeat = is_open  # a model may write the mark that the prompt has
        self._was_open = is_open

    def add(self, text: str) -> tuple[str, str]:
        """Take the next piece and return what is certain: reasoning and content."""
        if self._holds_space and not text.strip(SPACE):
            self._space.append(text)  # what follows decides: till then nothing is looked at again
            return "", ""
        self._buffer += "".join(self._space) + text
        self._space.clear()
        found = self._read()
        self._holds_space = bool(self._buffer) and not self._buffer.strip(SPACE)
        return found

    def _read(self) -> tuple[str, str]:
        reasoning = ""
        if self._state == "start":
            self._begin()
        if self._state == "open":
            reasoning = self._reason()
        return reasoning, self._content() if self._state == "content" else ""

    def flush(self) -> tuple[str, str]:
        """Return what was held back; the answer has ended."""
        rest, self._buffer = self._buffer + "".join(self._space), ""
        self._space.clear()
        if self._state == "open":
            return ("" if not rest.strip(SPACE) else rest.rstrip(SPACE)), ""
        return "", rest if self._state == "start" or rest.strip(SPACE) else ""

    def _begin(self) -> None:
        text = self._buffer.lstrip(SPACE)
        for mark in self._form.starts:
            if text.startswith(mark):
                self._buffer, self._state = text[len(mark) :], "open"
                self._trim = self._was_open = True
                return
        if not any(mark.startswith(text) for mark in self._form.starts):
            self._state = "content"

    def _reason(self) -> str:
        if self._trim:
            self._buffer = text = self._buffer.lstrip(SPACE)
            starts = self._form.starts
            found = next((mark for mark in starts if text.startswith(mark)), "")
            if not found and any(mark.startswith(text) for mark in starts):
                return ""
            if self._may_repeat and found:
                self._buffer, self._may_repeat = text[len(found) :], False
                return self._reason()
            self._trim = False
        ends = [(at, mark) for mark in self._form.ends if (at := self._buffer.find(mark)) >= 0]
        if not ends:
            keep = max(held_back(self._buffer, mark) for mark in self._form.ends)
            shown = self._buffer[: len(self._buffer) - keep].rstrip(SPACE)
            self._buffer = self._buffer[len(shown) :]
            return shown
        at, mark = min(ends)
        shown = self._buffer[:at].rstrip(SPACE)
        self._buffer = self._buffer[at + len(mark) :]
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
