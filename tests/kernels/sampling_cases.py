"""Sampling batches for tests and benchmarks: settings given by name, neutral ones filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.kernels.backend import SamplingBatch

NEUTRAL = {
    "temperature": (np.float32, 1.0),
    "top_p": (np.float32, 1.0),
    "min_p": (np.float32, 0.0),
    "repetition_penalty": (np.float32, 1.0),
    "presence_penalty": (np.float32, 0.0),
    "frequency_penalty": (np.float32, 0.0),
    "top_k": (np.int32, 0),
    "position": (np.int64, 0),
    "num_prompt_tokens": (np.int32, 0),
}


def batch(rows: int, **settings: Any) -> SamplingBatch:
    """Return the settings of ``rows`` rows.

    Args:
        settings: A number for all rows or one per row; ``seed`` defaults to the row's index;
            ``history`` and ``allowed`` lists of ids per row, ``bias`` a dict per row;
            ``masks`` (M, V) booleans for the first M rows.
    """
    fields: dict[str, Any] = {}
    for name, (dtype, value) in NEUTRAL.items():
        given = np.asarray(settings.pop(name, value), dtype)
        fields[name] = np.ascontiguousarray(np.broadcast_to(given, (rows,)))
    fields["seed"] = np.asarray(settings.pop("seed", np.arange(rows)), np.uint64)
    empty: list[list[int]] = [[] for _ in range(rows)]
    history = settings.pop("history", empty)
    allowed = settings.pop("allowed", empty)
    bias: list[dict[int, float]] = settings.pop("bias", [{} for _ in range(rows)])
    masks = np.asarray(settings.pop("masks", np.empty((0, 0))), np.bool_)
    padded = np.pad(masks, ((0, 0), (0, -masks.shape[1] % 32)))
    fields["mask_words"] = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)
    fields["mask_rows"] = np.where(np.arange(rows) < len(masks), np.arange(rows), -1)
    fields["mask_rows"] = fields["mask_rows"].astype(np.int32)
    assert not settings, settings
    for name, ids in (("history", history), ("allowed", allowed), ("bias", bias)):
        fields[f"{name}_ids"], fields[f"{name}_offsets"] = ragged([list(row) for row in ids])
    values = [value for row in bias for value in row.values()]
    fields["bias_values"] = np.array(values, np.float32)
    return SamplingBatch(**fields)


def ragged(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat ids and the offsets of each row."""
    flat = np.array([value for row in rows for value in row], np.int32)
    return flat, np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)


def row_of(whole: SamplingBatch, row: int) -> SamplingBatch:
    """Return the settings of one row as a batch of its own."""
    fields: dict[str, Any] = {
        name: getattr(whole, name)[row : row + 1].copy() for name in (*NEUTRAL, "seed", "mask_rows")
    }
    fields["mask_words"] = whole.mask_words.copy()
    for name in ("history", "allowed", "bias"):
        start, end = getattr(whole, f"{name}_offsets")[row : row + 2]
        fields[f"{name}_ids"] = getattr(whole, f"{name}_ids")[start:end].copy()
        fields[f"{name}_offsets"] = np.array([0, end - start], np.int64)
        if name == "bias":
            fields["bias_values"] = whole.bias_values[start:end].copy()
    return SamplingBatch(**fields)
