"""The numbers that decide draws: even, unrelated to each other, and fine enough for rare tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.reference.sampling import exponentials
from quire.kernels.sampling import draw_bits, draw_keys
from tests.kernels.sampling_cases import batch
from tests.sizes import sized

pytestmark = pytest.mark.kernels("sample", "sampling_probabilities")

IDS = np.arange(1 << 16)


def bits(seed: int, position: int, ids: np.ndarray = IDS) -> np.ndarray:
    drawn: np.ndarray = draw_bits(draw_keys(seed, position), ids)
    return drawn


def unevenness(values: np.ndarray, cells: int) -> float:
    """Return chi-square of whole numbers below ``cells`` in deviations from its mean."""
    counts = np.bincount(values, minlength=cells)
    expected = len(values) / cells
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float((statistic - (cells - 1)) / np.sqrt(2 * (cells - 1)))


@pytest.mark.parametrize("shift", [0, 8, 20, 28, 36, 44])
def test_every_byte_of_the_numbers_is_even(shift: int) -> None:
    drawn = [bits(seed, position) >> shift & 255 for seed in range(8) for position in range(8)]
    assert abs(unevenness(np.concatenate(drawn), 256)) < 4


def test_neighbours_are_unrelated() -> None:
    """Pairs of bytes: of neighbouring ids, positions and seeds, and of the two words."""
    for seed, position in ((0, 0), (1, 7), (2**64 - 1, 10_000)):
        mine = bits(seed, position) >> 44
        pairs = {
            "ids": mine[:-1] << 8 | mine[1:],
            "far ids": mine[:-4096] << 8 | mine[4096:],
            "positions": mine << 8 | bits(seed, position + 1) >> 44,
            "seeds": mine << 8 | bits(seed + 1, position) >> 44,
            "words": mine << 8 | bits(seed, position) >> 12 & 255,
        }
        for name, values in pairs.items():
            assert abs(unevenness(values, 1 << 16)) < 4.5, name


def test_one_token_s_numbers_are_even_over_positions_and_seeds() -> None:
    ids = np.array([0, 1, 2047, 151_935])
    seeds, positions = range(sized(32, 64)), range(sized(200, 400))
    drawn = np.array([bits(seed, at, ids) >> 44 for seed in seeds for at in positions])
    for column in drawn.T:
        assert abs(unevenness(column, 256)) < 4


def test_the_smallest_numbers_are_fine_below_their_first_word() -> None:
    """Where the upper 20 of 52 bits are 0, the others still take every value."""
    parts = np.arange(1 << 20).reshape(-1, 1 << 14)  # what a cache holds
    drawn = (bits(3, at, ids) for at in range(100) for ids in parts)
    low = np.concatenate([b[b >> 32 == 0] for b in drawn])
    assert 60 < len(low) < 150
    assert abs(unevenness(low >> 29, 8)) < 4 and abs(unevenness(low >> 8 & 7, 8)) < 4


def test_they_are_exponential() -> None:
    numbers = exponentials(5, 9, torch.arange(1 << 18)).numpy()
    assert abs(numbers.mean() - 1) < 0.01 and abs(numbers.var() - 1) < 0.03
    share = -np.expm1(-numbers)  # even between 0 and 1 for an exponential number
    assert abs(unevenness((share * 64).astype(int), 64)) < 4


def test_a_rare_token_wins_by_a_hair_and_loses_by_one(isa: str) -> None:
    """Each token in turn against token 0, its logit just over or under what its number needs."""
    vocab, seed, position = 4099, 6, 40
    needed = exponentials(seed, position, torch.arange(vocab)).log().numpy()
    needed = (needed - needed[0]).astype(np.float32)
    chosen = np.flatnonzero(needed < -0.01)[:: max(1, vocab // 600)]
    chosen = np.union1d(chosen, np.argsort(needed)[:40])
    logits = np.full((len(chosen), vocab), -90.0, np.float32)
    logits[:, 0] = 0
    seeds = np.full(len(chosen), seed)
    for cut in ({}, {"top_k": 2}, {"min_p": 1e-5}):
        settings = batch(len(chosen), seed=seeds, position=position, **cut)
        for hair, want in ((3e-6, chosen), (-3e-6, np.zeros_like(chosen))):
            logits[np.arange(len(chosen)), chosen] = needed[chosen] + hair
            tokens = CpuBackend(threads=1).sample(logits.copy(), settings)
            np.testing.assert_array_equal(tokens, want)
