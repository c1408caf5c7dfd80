"""A prompt of the command line: its argument, what stdin has, or both."""

from __future__ import annotations

import select
import sys

import click

from quire.core.errors import ConfigError

#: Characters that stdin may have: far more than any model's context holds.
MAX_CHARACTERS = 16 * 2**20
#: After that long a person is told what the program waits for.
TELL_SECONDS = 1.0


def read_prompt(argument: str) -> str:
    """Return a prompt; ``-`` reads it from stdin, without the last new line.

    Raises:
        ConfigError: The prompt is not UTF-8, or too long.
    """
    return _checked(_piped_text() if argument == "-" else argument)


def joined_prompt(argument: str | None) -> str | None:
    """Return what is piped in, a new line and the argument, as ``ollama run`` joins them.

    Args:
        argument: The prompt that was typed; None without one. ``-`` stands for what is piped in.

    Returns:
        None where there is no argument and stdin is a terminal.

    Raises:
        ConfigError: The same as in :func:`read_prompt`.
    """
    if argument == "-":
        return read_prompt(argument)
    if sys.stdin is None or sys.stdin.isatty():
        return None if argument is None else _checked(argument)
    piped = _piped_text()
    if argument is None:
        return _checked(piped)
    return _checked(f"{piped}\n{argument}" if piped.strip() else argument)


def _piped_text() -> str:
    if sys.stdin is None:
        return ""
    _tell_of_wait()
    text = sys.stdin.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"[prompt] stdin must have at most {MAX_CHARACTERS:,} characters; got more. Pipe a "
            "shorter text."
        )
    # `echo question |` ends its text with a newline that is no part of the question.
    return text.removesuffix("\n")


def _tell_of_wait() -> None:
    """Say on stderr that stdin is read, where nothing arrives for a while."""
    try:
        ready = sys.stdin.isatty() or select.select([sys.stdin], [], [], TELL_SECONDS)[0]
    except (OSError, ValueError):  # no descriptor, or none that can be waited for
        return
    if not ready:
        click.echo("quire: waiting for the end of stdin; < /dev/null gives it none", err=True)


def _checked(text: str) -> str:
    """Return a text that is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # Bytes that are not UTF-8 are read as lone surrogates.
        byte, before = ord(text[error.start]) & 0xFF, len(text[: error.start].encode())
        raise ConfigError(
            f"[tokenize] text must be valid Unicode; got {text[:40]!a}: the byte 0x{byte:02x} at "
            f"{before} is no UTF-8. Convert the text."
        ) from error
    return text
