"""A judge's task, and its windows for one model's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import ConfigError, RequestError
from quire.evaluation.choices import choice_windows
from quire.evaluation.documents import Document, Question, read_documents, read_questions
from quire.evaluation.scorer import Encoder, encode_document, start_tokens
from quire.evaluation.windows import Cut, Window, first_tokens

#: Without --window; a text of 8,000 tokens has 16 of them, enough for an interval.
WINDOW = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as it was asked for.

    Attributes:
        text: File of texts, or None.
        choices: File of questions, or None.
        window: Most tokens that the model sees together; None for :data:`WINDOW`, or for all that
            it can where positions are compared.
        stride: The same as in :class:`~quire.evaluation.windows.Cut`.
        max_tokens: Most tokens of the text, and of all questions with their choices; None for all.
        long_context: Whether losses are reported by position, too.
        chat: Whether questions are asked in the chat template.
    """

    text: Path | None = None
    choices: Path | None = None
    window: int | None = None
    stride: int | None = None
    max_tokens: int | None = None
    long_context: bool = False
    chat: bool = False

    def __post_init__(self) -> None:
        """Refuse flags that would have no effect.

        Raises:
            ConfigError: Such a flag is given; it is named.
        """
        if self.text is None and self.choices is None:
            raise ConfigError(
                "[eval] there must be something to judge by; got nothing, and no eval/heldout.txt "
                "lies with the model. Give --perplexity FILE or --choices FILE."
            )
        of_text = {
            "--window": self.window, "--stride": self.stride,
            "--long-context": self.long_context or None,
        }  # fmt: skip
        for flag, value in of_text.items():
            if self.text is None and value is not None:
                raise ConfigError(
                    f"[eval] {flag} must come with --perplexity; got --choices alone."
                )
        if self.chat and self.choices is None:
            raise ConfigError("[eval] --chat must come with --choices; got --perplexity alone.")
        if self.long_context and self.stride is not None:
            raise ConfigError(
                "[eval] --long-context must count every token of a window; got --stride "
                f"{self.stride}. Leave one out."
            )


@dataclass(frozen=True, slots=True)
class TaskTokens:
    """A task in one model's tokens.

    Attributes:
        cut: The cut of the text into windows; None without a text.
        windows: Windows of the text.
        num_text_tokens: Tokens of the whole text, before ``max_tokens``.
        questions: Questions that are asked.
        num_questions: Number of questions in the file.
        choice_windows: Windows of each question's choices, one after another.
    """

    cut: Cut | None
    windows: list[Window]
    num_text_tokens: int
    questions: list[Question]
    num_questions: int
    choice_windows: list[Window]

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return max(len(window.token_ids) for window in (*self.windows, *self.choice_windows))


def prepare(task: Task, encoder: Encoder) -> TaskTokens:
    """Make the windows of a task.

    Raises:
        ConfigError: A file, a line of it, or a setting is wrong.
        QuireError: Tokens cannot be had.
    """
    start = start_tokens(encoder)
    cut, windows, num_tokens = None, [], 0
    if task.text is not None:
        documents = read_documents(task.text)
        cut = _cut(task, encoder.max_tokens, start)
        texts = [_tokens(document, encoder, start) for document in documents]
        num_tokens = sum(map(len, texts))
        if task.max_tokens is not None:
            texts = first_tokens(texts, task.max_tokens)
        windows = cut.windows(texts)
        if not windows:
            raise ConfigError(f"[eval] --max-tokens must leave a token to count; got {num_tokens}.")
    questions = [] if task.choices is None else read_questions(task.choices)
    asked, of_choices = _choice_windows(task, questions, encoder)
    return TaskTokens(cut, windows, num_tokens, asked, len(questions), of_choices)


def _cut(task: Task, limit: int | None, start: tuple[int, ...]) -> Cut:
    window = task.window
    if window is None and task.long_context:
        if limit is None:
            raise ConfigError(
                "[eval] --long-context needs --window where the server does not say how long a "
                "prompt may be; got none."
            )
        window = limit
    elif window is None:
        window = WINDOW if limit is None else min(WINDOW, limit)
    elif limit is not None and window > limit:
        raise ConfigError(
            f"[eval] --window must be at most {limit}, the longest that the model takes; got "
            f"{window}."
        )
    return Cut(window, task.stride, start)


def _tokens(document: Document, encoder: Encoder, start: tuple[int, ...]) -> Sequence[int]:
    """Return a text's tokens without the start that each window gets."""
    ids = encode_document(document, encoder, "[eval] --perplexity")
    if start and tuple(ids[: len(start)]) == start:
        ids = ids[len(start) :]
    if len(ids) < (1 if start else 2):
        raise ConfigError(
            "[eval] a text must be at least 2 tokens with the model's start of a text; got "
            f"{len(ids) + len(start)} in line {document.line} of --perplexity."
        )
    return ids


def _choice_windows(
    task: Task, questions: Sequence[Question], encoder: Encoder
) -> tuple[list[Question], list[Window]]:
    """Return the questions that are asked, within the limit of tokens, and their windows."""
    asked: list[Question] = []
    windows: list[Window] = []
    num_tokens = 0
    for question in questions:
        try:
            found = choice_windows(question, encoder, task.chat, encoder.max_tokens)
        except RequestError as error:
            raise ConfigError(
                f"[eval] --choices must hold questions that can be asked; got {error} in line "
                f"{question.line}."
            ) from error
        num_tokens += sum(len(window.token_ids) for window in found)
        if asked and task.max_tokens is not None and num_tokens > task.max_tokens:
            break
        asked.append(question)
        windows += found
    return asked, windows
