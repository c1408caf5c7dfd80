"""Log-probabilities, ranks and best tokens of raw logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.reference.backend import ReferenceBackend

pytestmark = pytest.mark.kernels("token_logprobs")

CPU, REFERENCE = CpuBackend(threads=1), ReferenceBackend()


@pytest.mark.parametrize("num_top", [0, 1, 5, "all"])
@pytest.mark.parametrize("vocab", [1, 3, 17, 100, 2500])
def test_equals_the_reference(isa: str, threads: int, vocab: int, num_top: int | str) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((6, vocab)) * 5 + 40).astype(np.float32)
    logits[2] = np.round(logits[2])  # ties
    logits[3, ::2] = -np.inf if vocab > 1 else 0
    count = vocab if num_top == "all" else min(int(num_top), vocab)
    ids = rng.integers(0, vocab, 6).astype(np.int32)
    before = logits.copy()
    got = CPU.token_logprobs(logits, ids, count)
    want = [
        figure.numpy()
        for figure in REFERENCE.token_logprobs(
            torch.from_numpy(logits), torch.from_numpy(ids), count
        )
    ]
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(logits, before)


def test_bits_depend_on_the_row_alone(isa: str, threads: int) -> None:
    logits = np.random.default_rng(0).standard_normal((9, 3001)).astype(np.float32)
    ids = np.arange(9, dtype=np.int32)
    together = CPU.token_logprobs(logits, ids, 4)
    for row in range(9):
        one = slice(row, row + 1)
        for mine, theirs in zip(
            CPU.token_logprobs(logits[one], ids[one], 4), together, strict=True
        ):
            np.testing.assert_array_equal(mine[0], theirs[row])


def test_ranks_count_from_one_and_ties_go_by_id() -> None:
    logits = np.array([[1.0, 3.0, 3.0, 2.0]] * 4, np.float32)
    logprobs, ranks, top_ids, top = CPU.token_logprobs(logits, np.arange(4, dtype=np.int32), 4)
    assert ranks.tolist() == [4, 1, 2, 3]
    assert top_ids[0].tolist() == [1, 2, 3, 0]
    np.testing.assert_array_equal(top[0], np.sort(logprobs)[::-1])
    assert np.exp(top[0]).sum() == pytest.approx(1)


def test_nan_rows_do_not_break_the_others() -> None:
    logits = np.zeros((2, 100), np.float32)
    logits[0, ::3] = np.nan
    _, _, top_ids, top = CPU.token_logprobs(logits, np.zeros(2, np.int32), 100)
    assert sorted(top_ids[0].tolist()) == list(range(100))
    np.testing.assert_allclose(top[1], -np.log(100), rtol=1e-6)


def test_wrong_arguments_are_refused() -> None:
    logits = np.zeros((2, 5), np.float32)
    with pytest.raises(UnsupportedInputError, match=r"num_top must be in 0\.\.5"):
        CPU.token_logprobs(logits, np.zeros(2, np.int32), 6)
    with pytest.raises(UnsupportedInputError, match="one id per row"):
        CPU.token_logprobs(logits, np.zeros(3, np.int32), 1)
    with pytest.raises(ValueError, match="inside the vocabulary"):
        CPU.token_logprobs(logits, np.array([0, 5], np.int32), 1)
