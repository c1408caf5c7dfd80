"""The distribution that tokens are drawn from, after all settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.reference.backend import ReferenceBackend
from tests.kernels.sampling_cases import (
    batch,
    large_rows,
    long_rows,
    random_logits,
    random_settings,
    row_of,
)
from tests.kernels.torch_copies import tensors

pytestmark = pytest.mark.kernels("sample", "sampling_probabilities")

torch.set_num_threads(1)
CPU, REFERENCE = CpuBackend(threads=1), ReferenceBackend()


def check(logits: np.ndarray, settings: SamplingBatch) -> np.ndarray:
    """Compare with the reference and with draws; return the probabilities."""
    given = torch.from_numpy(logits.copy())
    want = REFERENCE.sampling_probabilities(given, tensors(settings)).numpy()
    found = CPU.sampling_probabilities(logits.copy(), settings)
    np.testing.assert_allclose(found, want, rtol=3e-5, atol=1e-30)
    tokens = CPU.sample(logits.copy(), settings)
    chosen = tokens >= 0
    np.testing.assert_allclose(found.sum(axis=1, dtype=float), chosen, atol=1e-5)
    assert (found[np.flatnonzero(chosen), tokens[chosen]] > 0).all()
    return found


@pytest.mark.parametrize("vocab", [1, 2, 15, 17, 1000, 5003])
def test_they_are_the_reference_s(isa: str, vocab: int) -> None:
    check(random_logits(120, vocab), random_settings(120, vocab))


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 1.0, 0.0),
        (0, 0.9, 0.0),
        (50, 0.8, 0.0),
        (20_000, 1.0, 0.0),
        (20_000, 0.9, 1e-4),
        (0, 1.0, 1e-3),
    ],
)
def test_cuts_of_a_large_vocabulary(isa: str, top_k: int, top_p: float, min_p: float) -> None:
    """Short and long prefixes, with many equal logits at the cut too."""
    logits = np.concatenate([large_rows(20_003), long_rows(20_003)])
    check(logits, batch(len(logits), top_k=top_k, top_p=top_p, min_p=min_p))


def test_a_row_does_not_feel_its_neighbours(isa: str, threads: int) -> None:
    rows, vocab = 40, 3001
    logits, settings = random_logits(rows, vocab), random_settings(rows, vocab)
    together = CPU.sampling_probabilities(logits.copy(), settings)
    for row in range(rows):
        alone = CPU.sampling_probabilities(logits[row : row + 1].copy(), row_of(settings, row))
        np.testing.assert_array_equal(alone[0], together[row])


def test_a_greedy_row_is_its_token_and_one_without_a_choice_is_nothing(isa: str) -> None:
    logits = np.zeros((4, 40), np.float32)
    logits[0, [30, 12]] = 4
    logits[1, 7] = np.nan
    logits[2] = -np.inf
    found = check(logits, batch(4, temperature=[0.0, 1.0, 0.0, 2.0]))
    assert np.flatnonzero(found[0]).tolist() == [12]
    assert not found[1:3].any()
    np.testing.assert_allclose(found[3], 1 / 40, rtol=1e-6)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UnsupportedInputError, match="inside the vocabulary"):
        CPU.sampling_probabilities(np.zeros((1, 7), np.float32), batch(1, history=[[7]]))
    with pytest.raises(UnsupportedInputError, match=r"temperature must have shape \(2,\)"):
        CPU.sampling_probabilities(np.zeros((2, 7), np.float32), batch(3))
