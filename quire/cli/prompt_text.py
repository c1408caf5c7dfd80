"""A prompt of the command line: its argument, or what stdin has."""

from __future__ import annotations

import sys

from quire.core.errors import ConfigError


def read_prompt(argument: str) -> str:
    """Return a prompt; ``-`` reads it from stdin, without the last new line.

    Raises:
        ConfigError: It is not UTF-8.
    """
    # `echo question |` ends its text with a newline that is no part of the question.
    text = sys.stdin.read().removesuffix("\n") if argument == "-" else argument
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
