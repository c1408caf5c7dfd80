"""Multiple choice: each choice as a continuation of its question, the likeliest one is picked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from quire.core.errors import ConfigError
from quire.evaluation.documents import Question
from quire.evaluation.intervals import Estimate, paired_difference, wilson_interval
from quire.evaluation.scorer import Encoder
from quire.evaluation.windows import Window


@dataclass(frozen=True, slots=True)
class Scored:
    """A question with the log-probabilities of its choices.

    Attributes:
        line: Line of the file.
        answer: Index of the right choice, or None.
        logprobs: Sum over each choice's tokens, nats.
        normalized: The same per byte of the choice's text.
    """

    line: int
    answer: int | None
    logprobs: tuple[float, ...]
    normalized: tuple[float, ...]

    @property
    def pick(self) -> int:
        """The likeliest choice."""
        return int(np.argmax(self.logprobs))

    @property
    def pick_normalized(self) -> int:
        """The likeliest choice by byte, which does not prefer short ones."""
        return int(np.argmax(self.normalized))


def choice_windows(
    question: Question, encoder: Encoder, chat: bool, max_tokens: int | None
) -> list[Window]:
    """Return a window for each choice, in which only the choice's tokens count.

    A choice follows its question after a space, as text; with ``chat`` it is the beginning of the
    answer to the question.

    Raises:
        ConfigError: A question with its choice is longer than ``max_tokens``, or one token.
    """
    if chat:
        asked = encoder.encode_chat([{"role": "user", "content": question.question}], True)
        whole = [[*asked, *encoder.encode_after(choice)] for choice in question.choices]
    else:
        text = question.question.rstrip()
        asked = encoder.encode(text, True)
        whole = [encoder.encode(f"{text} {choice.lstrip()}", True) for choice in question.choices]
    longest = max(map(len, whole))
    if max_tokens is not None and longest > max_tokens:
        raise ConfigError(
            f"[eval] a question with its choice must fit in {max_tokens} tokens; got {longest} in "
            f"line {question.line} of --choices."
        )
    if min(map(len, whole)) < 2:
        raise ConfigError(
            "[eval] a question with its choice must be at least 2 tokens; got 1 in line "
            f"{question.line} of --choices."
        )
    # Where the end of the question joins with a choice into one token, that token counts.
    return [
        Window(np.array(ids, np.int32), max(1, min(_num_common(asked, ids), len(ids) - 1)))
        for ids in whole
    ]


def _num_common(asked: Sequence[int], ids: Sequence[int]) -> int:
    pairs = zip(asked, ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def score(questions: Sequence[Question], losses: Iterator[np.ndarray]) -> list[Scored]:
    """Take the losses of each choice's window, in their order."""
    scored = []
    for question in questions:
        sums = [-float(next(losses).sum()) for _ in question.choices]
        sizes = [len(choice.strip().encode()) for choice in question.choices]
        scored.append(
            Scored(
                question.line,
                question.answer,
                tuple(sums),
                tuple(total / size for total, size in zip(sums, sizes, strict=True)),
            )
        )
    return scored


def accuracy(scored: Sequence[Scored], normalized: bool) -> Estimate | None:
    """Return the share of right picks with Wilson's 95% interval; None where no answer is known."""
    right = _right(scored, normalized)
    return wilson_interval(sum(right), len(right)) if right else None


def accuracy_difference(
    scored: Sequence[Scored], reference: Sequence[Scored], normalized: bool
) -> Estimate | None:
    """Return how much larger the share of right picks is than a reference's.

    The interval is that of shares of the same questions.
    """
    own, other = _right(scored, normalized), _right(reference, normalized)
    if not own:
        return None
    pairs = list(zip(own, other, strict=True))
    return paired_difference(pairs.count((True, False)), pairs.count((False, True)), len(pairs))


def _right(scored: Sequence[Scored], normalized: bool) -> list[bool]:
    known = [one for one in scored if one.answer is not None]
    return [(one.pick_normalized if normalized else one.pick) == one.answer for one in known]
