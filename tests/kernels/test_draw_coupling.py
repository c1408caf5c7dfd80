"""Draws from two distributions at the same seeds and positions: they agree as often as they can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.kernels.cpu.backend import CpuBackend
from tests.kernels.sampling_cases import batch

pytestmark = pytest.mark.kernels("sample", "sampling_probabilities")

ROWS, VOCAB = 4000, 600
CPU = CpuBackend(threads=1)


def draw(logits: np.ndarray, **settings: Any) -> np.ndarray:
    """Return tokens of one row of logits at ``ROWS`` seeds."""
    tokens: np.ndarray = CPU.sample(np.repeat(logits[None], ROWS, axis=0), batch(ROWS, **settings))
    return tokens


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(float) - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize("noise", [0.2, 0.7, 1.5])
def test_two_models_agree_as_often_as_theory_says(isa: str, noise: float) -> None:
    """Token i wins both where each other number is above ``E_i max(p_j / p_i, q_j / q_i)``."""
    random = np.random.default_rng(2)
    target = random.standard_normal(VOCAB).astype(np.float32) * 2
    draft = target + noise * random.standard_normal(VOCAB).astype(np.float32)
    p, q = probabilities(target), probabilities(draft)
    ratios = np.maximum(p[None] / p[:, None], q[None] / q[:, None])
    expected = (1 / ratios.sum(axis=1)).sum()
    distance = np.abs(p - q).sum() / 2
    assert (1 - distance) / (1 + distance) <= expected <= 1 - distance
    same = (draw(target) == draw(draft)).mean()
    assert abs(same - expected) < 4 * np.sqrt(expected * (1 - expected) / ROWS)


@pytest.mark.parametrize(
    "cut",
    [{"top_k": 20}, {"top_k": 400}, {"top_p": 0.6}, {"top_p": 0.97}, {"min_p": 0.05}],
    ids=str,
)
def test_what_else_is_kept_does_not_matter(isa: str, cut: dict[str, float]) -> None:
    """Where the draw from all tokens is one that a cut keeps, the cut row draws it, too."""
    logits = np.random.default_rng(4).standard_normal(VOCAB).astype(np.float32) * 2
    free, restricted = draw(logits), draw(logits, **cut)
    kept = np.unique(restricted)
    stays = np.isin(free, kept)
    assert 0.3 < stays.mean() < 1
    np.testing.assert_array_equal(free[stays], restricted[stays])


def test_a_larger_vocabulary_and_another_batch_draw_the_same(isa: str, threads: int) -> None:
    """Tokens that cannot be drawn, added after the others, change nothing."""
    logits = np.random.default_rng(6).standard_normal(VOCAB).astype(np.float32)
    longer = np.concatenate([logits, np.full(5000, -np.inf, np.float32)])
    np.testing.assert_array_equal(draw(longer), draw(logits))
