"""Files of texts and of questions, read line by line; tokens are made elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from quire.core.errors import ConfigError

#: Names of files with a JSON object on each line.
JSON_LINES = (".jsonl", ".ndjson")
#: Why an entry that is none cannot be used.
Reason = str
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """A text, or a conversation.

    Attributes:
        line: Line of the file, from 1.
        text: None for a conversation.
        messages: Messages in OpenAI's form; None for a text.
    """

    line: int
    text: str | None = None
    messages: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its choices.

    Attributes:
        line: Line of the file, from 1.
        question: Text before each choice.
        choices: Choices, at least two.
        answer: Index of the right choice, None where it is not known.
    """

    line: int
    question: str
    choices: tuple[str, ...]
    answer: int | None


def read_documents(path: Path, flag: str = "[eval] --perplexity") -> list[Document]:
    """Return the texts of a file: the whole of it, or one a line of ``.jsonl``.

    A line is an object with ``text`` or ``messages``; its other fields have no meaning here.

    Args:
        path: The file.
        flag: The command and flag that name the file, for messages.

    Raises:
        ConfigError: The file cannot be read or is empty, or a line is no such object.
    """
    if path.suffix.lower() in JSON_LINES:
        return _read_lines(flag, path, _document)
    text = _read(flag, path)
    if not text.strip():
        raise ConfigError(f"{flag} must hold text; got {path}, which is empty.")
    return [Document(1, text)]


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file, one a line: ``{"question", "choices", "answer"}``.

    Raises:
        ConfigError: The file cannot be read or is empty, or a line is no such object.
    """
    return _read_lines("[eval] --choices", path, _question)


def _document(line: int, entry: dict[str, Any]) -> Document | Reason:
    text, messages = entry.get("text"), entry.get("messages")
    if (text is None) == (messages is None):
        return f"one of text and messages, not {'both' if text is not None else 'neither'}"
    if messages is None:
        return Document(line, text) if isinstance(text, str) and text else "a text that is one"
    if not (isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages)):
        return "messages that are a list of objects"
    return Document(line, messages=messages)


def _question(line: int, entry: dict[str, Any]) -> Question | Reason:
    question, choices, answer = (entry.get(key) for key in ("question", "choices", "answer"))
    if not isinstance(question, str) or not question.strip():
        return "a question that is text"
    if not (isinstance(choices, list) and len(choices) >= 2):
        return "choices that are a list of at least two"
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        return "choices that are text"
    if answer is not None and (
        not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices)
    ):
        return f"an answer that is an index of its {len(choices)} choices"
    return Question(line, question, tuple(choices), answer)


def _read_lines(
    flag: str, path: Path, read: Callable[[int, dict[str, Any]], T | Reason]
) -> list[T]:
    found: list[T] = []
    command, name = flag.split(" ", 1)
    # Not splitlines(): JSON text may hold U+2028 as it is.
    for number, line in enumerate(_read(flag, path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            value = read(number, entry) if isinstance(entry, dict) else "a JSON object"
        except (ValueError, RecursionError) as error:
            value = f"JSON ({error})"
        if isinstance(value, str):
            raise ConfigError(
                f"{command} each line of {name} must hold {value}; got {line.strip()[:60]!r} in "
                f"line {number} of {path}."
            )
        found.append(value)
    if not found:
        raise ConfigError(f"{flag} must hold at least one line; got {path}, which is empty.")
    return found


def _read(flag: str, path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{flag} must be a file of UTF-8 text; got {path}: {reason}.") from None
