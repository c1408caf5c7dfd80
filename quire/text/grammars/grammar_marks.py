"""Marks of a model's formats in Lark, where they are special tokens and where they are text."""

from __future__ import annotations

import json

from quire.text.tokenizers.tokenizer import Tokenizer


def mark(tokenizer: Tokenizer, text: str) -> str:
    """Return a mark as a term of Lark: its token where no plain text can be it."""
    token_id = _special_id(tokenizer, text)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


def text_until(tokenizer: Tokenizer, rule: str, end: str, inner: str = "(.|\\n)*") -> list[str]:
    """Return the rules of ``rule``: text up to and including the first ``end``.

    Args:
        tokenizer: The model's tokenizer.
        rule: The rule's name, in small letters.
        end: The mark.
        inner: The text as a regular expression.
    """
    token_id = _special_id(tokenizer, end)
    if token_id is None:
        return [f"{rule}[lazy]: /{inner}{escaped(end)}/"]
    return [f"{rule}: {rule.upper()} <[{token_id}]>", f"{rule.upper()}: /{inner}/"]


def escaped(text: str) -> str:
    """Return a regular expression for ``text`` alone."""
    return "".join(c if c.isalnum() and c.isascii() else f"\\x{{{ord(c):x}}}" for c in text)


def _special_id(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the id of a mark that no plain text can be; None when its characters are the mark."""
    token_id = tokenizer.token_to_id(text)
    return token_id if token_id is not None and tokenizer.is_special(token_id) else None
