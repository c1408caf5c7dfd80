"""Sampling batches for tests and benchmarks, by name or at random, and rows of logits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.kernels.batch.sampling_batch import SamplingBatch
from tests.sizes import sized

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


def random_logits(rows: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Logits of a normal distribution."""
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * 3).astype(np.float32)


def random_settings(rows: int, vocab: int) -> SamplingBatch:
    """Every setting at once, some neutral, some sharp."""
    rng = np.random.default_rng(5)
    histories = [rng.integers(0, vocab, rng.integers(0, 30)).tolist() for _ in range(rows)]
    return batch(
        rows,
        temperature=rng.choice([0.0, 0.3, 1.0, 1.7], rows),
        top_p=rng.choice([1.0, 0.95, 0.5, 1e-6], rows),
        min_p=rng.choice([0.0, 0.0, 0.1, 1.0], rows),
        top_k=rng.choice([0, 0, 1, 5, 40, 10 * vocab], rows),
        repetition_penalty=rng.choice([1.0, 1.1, 0.8], rows),
        presence_penalty=rng.choice([0.0, 0.5, -0.5], rows),
        frequency_penalty=rng.choice([0.0, 0.3], rows),
        seed=rng.integers(0, 2**64, rows, dtype=np.uint64),
        position=rng.integers(0, 10_000, rows),
        history=histories,
        num_prompt_tokens=[len(ids) // 2 for ids in histories],
        bias=[{int(rng.integers(vocab)): 2.0} if i % 5 == 0 else {} for i in range(rows)],
        allowed=[rng.integers(0, vocab, 7).tolist() if i % 7 == 0 else [] for i in range(rows)],
        masks=rng.random((rows // 3, vocab)) < rng.choice([0.02, 0.5, 1.0], (rows // 3, 1)),
    )


def large_rows(vocab: int) -> np.ndarray:
    """Rows as models give them, flat ones, rows of ties and rows with few possible tokens."""
    return _large_rows(vocab).copy()


@functools.cache
def _large_rows(vocab: int) -> np.ndarray:
    rng, shape = np.random.default_rng(11), (sized(4, 10), vocab)
    peaked = rng.standard_normal(shape) * 2.5
    peaked[:, rng.integers(0, vocab, 30)] += rng.uniform(6, 18, 30)
    flat = rng.standard_normal(shape) * 0.7
    ties = np.round(rng.standard_normal(shape) * 2)
    few = np.where(rng.random(shape) < 0.001, rng.standard_normal(shape), -np.inf)
    few[:, vocab // 2] = 0.25
    return np.concatenate([peaked, flat, ties, few]).astype(np.float32)


def long_rows(vocab: int) -> np.ndarray:
    """Rows whose nucleus is long, two of each kind."""
    return _long_rows(vocab).copy()


@functools.cache
def _long_rows(vocab: int) -> np.ndarray:
    rng = np.random.default_rng(17)
    normal = rng.standard_normal((12, vocab))
    ids = np.arange(vocab)
    kinds = [
        normal[:2],
        normal[2:4] * 0.3,
        normal[4:6] * 2.5,
        rng.uniform(0, 5, (2, vocab)),
        np.round(normal[6:8], 1),  # many equal logits at the cut
        np.where(rng.random((2, vocab)) < 0.5, 1.0, 0.5),
        np.full((2, vocab), -3.25),
        np.where(rng.random((2, vocab)) < 0.9, -np.inf, normal[8:10]),
        np.stack([ids, ids[::-1]]) * (10 / vocab),
        normal[10:] + np.where(ids % 256 < 16, 0.0, 3.0),
    ]
    return np.concatenate(kinds).astype(np.float32)
