"""Rows of token ids in the kinds that callers have: lists, numpy arrays, torch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.errors import RequestError


def read_rows(name: str, value: Any) -> list[list[int]]:
    """Return rows of integers.

    Args:
        name: Name of the argument, for messages.
        value: (B, T) or (T,) in any kind; rows of a list may differ in length.

    Raises:
        RequestError: The value is something else.
    """
    rows = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(rows, list | tuple) and rows and isinstance(rows[0], int):
        rows = [rows]
    fits = isinstance(rows, list | tuple) and all(
        isinstance(row, list | tuple) and all(isinstance(i, int) for i in row) for row in rows
    )
    if not fits or not rows:
        raise RequestError(f"[generate] {name} must be rows of token ids; got {value!r:.80}.", name)
    return [list(row) for row in rows]


def read_prompts(ids: Any, mask: Any, pad: int | None, ends: Sequence[int]) -> list[list[int]]:
    """Return the tokens of prompts without those that fill rows up.

    Args:
        ids: (B, T) or (T,), as :func:`read_rows` takes them.
        mask: 0 where a token is not one of the prompt; None: where it is the pad token, unless
            that ends sequences as well, as in transformers.
        pad: The pad token.
        ends: Tokens that end a sequence.

    Raises:
        RequestError: Shapes differ.
    """
    rows = read_rows("input_ids", ids)
    if mask is None:
        fills = None if pad in ends else pad
        return [[token for token in row if token != fills] for row in rows]
    masks = read_rows("attention_mask", mask)
    if [len(row) for row in masks] != [len(row) for row in rows]:
        raise RequestError(
            f"[generate] attention_mask must have the shape of input_ids; got {len(masks)} rows of "
            f"other lengths, or not {len(rows)}.",
            "attention_mask",
        )
    return [
        [token for token, read in zip(row, own, strict=True) if read]
        for row, own in zip(rows, masks, strict=True)
    ]


def like(value: Any, rows: Sequence[Sequence[int]], pad: int) -> Any:
    """Return rows of token ids as what the caller gave, filled up at the end where it has a shape.

    Args:
        value: Rows as the caller gave them, whose kind is kept.
        rows: Token ids; rows may differ in length.
        pad: Token that fills rows up.
    """
    longest = max(map(len, rows))
    filled = [[*row, *[pad] * (longest - len(row))] for row in rows]
    if hasattr(value, "new_tensor"):
        return value.new_tensor(filled)
    return np.array(filled, np.int64) if isinstance(value, np.ndarray) else filled
