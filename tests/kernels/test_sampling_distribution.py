"""Draws follow their distribution (chi-square), and the test would notice wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.reference.backend import ReferenceBackend
from tests.kernels.sampling_cases import batch
from tests.kernels.torch_copies import tensors
from tests.sizes import sized

pytestmark = pytest.mark.kernels("sample", "sampling_probabilities")

DRAWS = 20_000
LOGITS = np.array([2.0, 0.5, 1.5, -1.0, 1.4, 0.0, 2.2, -4.0, 0.9], np.float32)
#: Chi-square quantiles at p = 1e-4 for 1 to 9 degrees of freedom.
BOUNDS = [15.1, 18.4, 21.1, 23.5, 25.7, 27.9, 29.9, 31.8, 33.7]


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def keep(p: np.ndarray, kept: np.ndarray) -> np.ndarray:
    p = np.where(kept, p, 0)
    return p / p.sum()


def top_k(p: np.ndarray, k: int) -> np.ndarray:
    return keep(p, np.argsort(np.argsort(-p)) < k)


def top_p(p: np.ndarray, mass: float, extra: int = 0) -> np.ndarray:
    count = int((np.cumsum(np.sort(p)[::-1]) < mass).sum()) + 1 + extra
    return top_k(p, count)


def min_p(p: np.ndarray, share: float) -> np.ndarray:
    return keep(p, p >= share * p.max())


P = softmax(LOGITS.astype(float))
#: name: (settings, right distribution, wrong ones a bug could give)
CASES: dict[str, tuple[dict[str, float], np.ndarray, list[np.ndarray]]] = {
    "temperature 1": ({}, P, [softmax(LOGITS / 1.1), softmax(LOGITS * 1.1)]),
    "temperature 0.7": ({"temperature": 0.7}, softmax(LOGITS / 0.7), [P, softmax(LOGITS * 0.7)]),
    "top_k": ({"top_k": 4}, top_k(P, 4), [top_k(P, 3), top_k(P, 5), P]),
    "top_p": ({"top_p": 0.8}, top_p(P, 0.8), [top_p(P, 0.8, 1), top_p(P, 0.8, -1), P]),
    "min_p": ({"min_p": 0.2}, min_p(P, 0.2), [keep(P, P >= 0.2), min_p(P, 0.3), P]),
    "top_p of top_k": (
        {"top_k": 4, "top_p": 0.7},
        top_p(top_k(P, 4), 0.7),
        [top_k(top_p(P, 0.7), 4), top_k(P, 4), top_p(P, 0.7)],
    ),
    "top_p after temperature": (
        {"temperature": 2.0, "top_p": 0.75},
        top_p(softmax(LOGITS / 2), 0.75),
        [keep(softmax(LOGITS / 2), top_p(P, 0.75) > 0), top_p(P, 0.75)],
    ),
    "min_p after temperature": (
        {"temperature": 2.0, "min_p": 0.4},
        min_p(softmax(LOGITS / 2), 0.4),
        [keep(softmax(LOGITS / 2), min_p(P, 0.4) > 0), min_p(P, 0.4)],
    ),
}


def chi_square(counts: np.ndarray, p: np.ndarray) -> tuple[float, float]:
    """Return the statistic of counts against p, and its bound."""
    if counts[p == 0].any():
        return np.inf, 0.0
    expected = counts.sum() * p[p > 0]
    statistic = float(((counts[p > 0] - expected) ** 2 / expected).sum())
    return statistic, BOUNDS[max(len(expected) - 2, 0)]


def draw(backend: Any, settings: dict[str, float], draws: int) -> np.ndarray:
    logits = np.repeat(LOGITS[None], draws, axis=0)
    batched = batch(
        draws, position=np.arange(draws) % 100, seed=np.arange(draws) // 100, **settings
    )
    if isinstance(backend, ReferenceBackend):
        tokens = backend.sample(torch.from_numpy(logits), tensors(batched)).numpy()
    else:
        tokens = backend.sample(logits, batched)
    return np.bincount(tokens, minlength=len(LOGITS))


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_distribution_and_no_wrong_one(isa: str, name: str) -> None:
    settings, right, wrong_ones = CASES[name]
    counts = draw(CpuBackend(threads=1), settings, DRAWS)
    statistic, bound = chi_square(counts, right)
    assert statistic < bound
    for wrong in wrong_ones:
        statistic, bound = chi_square(counts, wrong)
        assert statistic > bound


@pytest.mark.parametrize("name", CASES)
def test_the_reference_follows_it_too(name: str) -> None:
    settings, right, _ = CASES[name]
    statistic, bound = chi_square(draw(ReferenceBackend(), settings, sized(500, 1000)), right)
    assert statistic < bound


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"top_k": 5000}], ids=str)
def test_a_large_vocabulary_follows_its_distribution(isa: str, settings: dict[str, float]) -> None:
    """Tokens in eight groups by rank, of about equal weight: the rarest has above a hundred."""
    vocab, rows = 20_000, 250
    random = np.random.default_rng(8)
    order = random.permutation(vocab)
    logits = np.empty(vocab, np.float32)
    logits[order] = -1.05 * np.log(np.arange(vocab) + 3.0)
    p = np.zeros(vocab)
    p[order] = softmax(logits[order].astype(float))
    if "top_k" in settings:
        p = top_k(p, int(settings["top_k"]))
    p = top_p(p, settings.get("top_p", 1.0))
    group_of = np.empty(vocab, int)
    group_of[order] = np.minimum(p[order].cumsum() * 8, 7).astype(int)
    many = np.repeat(logits[None], rows, axis=0)
    backend = CpuBackend(threads=1)
    drawn = [
        backend.sample(many, batch(rows, seed=np.arange(rows), position=at, **settings))
        for at in range(sized(6, 40))
    ]
    tokens = np.concatenate(drawn)
    assert (p[tokens] > 0).all()
    weight = np.bincount(group_of, p, minlength=8)
    statistic, bound = chi_square(np.bincount(group_of[tokens], minlength=8), weight)
    assert statistic < bound


def test_positions_and_seeds_both_matter() -> None:
    backend = CpuBackend(threads=1)
    logits = np.zeros((300, 1000), np.float32)
    by_seed = backend.sample(logits.copy(), batch(300, seed=np.arange(300), position=3))
    by_position = backend.sample(
        logits.copy(), batch(300, seed=np.full(300, 3), position=np.arange(300))
    )
    again = backend.sample(logits.copy(), batch(300, seed=np.arange(300), position=3))
    np.testing.assert_array_equal(by_seed, again)
    assert len(set(by_seed.tolist())) > 200 and len(set(by_position.tolist())) > 200
