"""Choosing tokens: what the reference chooses, and no influence of neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.reference.backend import ReferenceBackend
from quire.kernels.reference.sampling import penalized
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


@pytest.mark.parametrize("vocab", [1, 2, 15, 17, 1000, 5003])
def test_chooses_what_the_reference_chooses(isa: str, vocab: int) -> None:
    rows = 120
    logits, settings = random_logits(rows, vocab), random_settings(rows, vocab)
    want = REFERENCE.sample(torch.from_numpy(logits), tensors(settings)).numpy()
    np.testing.assert_array_equal(CPU.sample(logits.copy(), settings), want)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 1.0, 0.0),
        (0, 0.3, 0.0),
        (0, 0.9, 0.0),
        (0, 0.999, 0.0),
        (50, 1.0, 0.0),
        (50, 0.8, 0.0),
        (300, 0.95, 0.02),
        (20_000, 1.0, 0.0),
        (20_000, 0.9, 1e-4),
        (0, 1.0, 0.3),
        (0, 1.0, 1e-3),
        (0, 0.9, 1e-3),
        (0, 0.5, 1.0),
    ],
)
def test_cuts_of_a_large_vocabulary_are_the_reference_s(
    isa: str, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Short and long prefixes: they are found in two ways."""
    logits = large_rows(33_000)
    rows = len(logits)
    settings = batch(rows, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    want = REFERENCE.sample(torch.from_numpy(logits), tensors(settings)).numpy()
    np.testing.assert_array_equal(CPU.sample(logits.copy(), settings), want)


@pytest.mark.parametrize("vocab", [32_768, 40_003])
@pytest.mark.parametrize("top_p", [1.0, 0.9999, 0.9, 0.5, 0.1, 1e-6])
def test_a_long_nucleus_is_the_reference_s(isa: str, vocab: int, top_p: float) -> None:
    logits = long_rows(vocab)
    settings = batch(len(logits), top_p=top_p, seed=np.arange(len(logits)) + 100)
    want = REFERENCE.sample(torch.from_numpy(logits), tensors(settings)).numpy()
    np.testing.assert_array_equal(CPU.sample(logits.copy(), settings), want)


def test_a_long_nucleus_does_not_feel_its_neighbours(isa: str, threads: int) -> None:
    logits = long_rows(40_003)
    rows = len(logits)
    masks = np.random.default_rng(3).random((rows // 2, 40_003)) < 0.7
    settings = batch(rows, top_p=np.linspace(0.3, 0.99, rows), masks=masks)
    want = REFERENCE.sample(torch.from_numpy(logits), tensors(settings)).numpy()
    together = CPU.sample(logits.copy(), settings)
    np.testing.assert_array_equal(together, want)
    for row in range(rows):
        alone = CPU.sample(logits[row : row + 1].copy(), row_of(settings, row))
        assert alone[0] == together[row]


def test_equal_logits_of_a_long_nucleus_are_cut_by_id(isa: str) -> None:
    """A quarter of the ids, and not one more: all draws together come close to the last."""
    logits = np.zeros((600, 40_000), np.float32)
    logits[:, ::2] = 30.0
    tokens = CPU.sample(logits, batch(600, top_p=0.5))
    assert (tokens % 2 == 0).all()
    assert 19_800 < tokens.max() < 20_000


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 1e6, 3e38])
@pytest.mark.parametrize("top_p", [1.0, 0.50001])
def test_temperatures_at_the_ends_of_float(isa: str, temperature: float, top_p: float) -> None:
    """A high one makes all weights 1; half of 20,000 of them would end on the edge of a token."""
    logits = large_rows(33_000)
    settings = batch(len(logits), temperature=temperature, top_p=top_p, top_k=20_000)
    want = REFERENCE.sample(torch.from_numpy(logits), tensors(settings)).numpy()
    np.testing.assert_array_equal(CPU.sample(logits.copy(), settings), want)


def test_a_row_does_not_feel_its_neighbours(isa: str, threads: int) -> None:
    rows, vocab = 40, 3001
    logits, settings = random_logits(rows, vocab), random_settings(rows, vocab)
    together = CPU.sample(logits.copy(), settings)
    for row in range(rows):
        alone = CPU.sample(logits[row : row + 1].copy(), row_of(settings, row))
        assert alone[0] == together[row]


def test_logits_hold_the_penalised_values_afterwards(isa: str) -> None:
    rows, vocab = 60, 101
    logits, settings = random_logits(rows, vocab), random_settings(rows, vocab)
    want = np.stack([penalized(torch.from_numpy(logits), tensors(settings), i) for i in range(60)])
    CPU.sample(logits, settings)
    np.testing.assert_allclose(logits, want, rtol=1e-5, atol=1e-6)


def test_penalties_by_hand() -> None:
    """Token 1 is prompt, 2 twice output, 3 both; 0 was never seen."""
    logits = np.array([[2.0, 2.0, 2.0, -2.0]], np.float32)
    settings = batch(
        1,
        history=[[1, 3, 2, 2, 3]],
        num_prompt_tokens=2,
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    want = [2.0, 2.0 / 2, 2.0 / 2 - 2 * 0.25 - 0.5, -2.0 * 2 - 0.25 - 0.5]
    np.testing.assert_allclose(penalized(torch.from_numpy(logits), tensors(settings), 0), want)
    CPU.sample(logits, settings)
    np.testing.assert_allclose(logits[0], want)


def test_bias_comes_before_penalties_and_allowed_before_all() -> None:
    logits = np.array([[1.0, -1.0, 5.0]], np.float32)
    settings = batch(
        1,
        bias=[{1: 3.0}],
        allowed=[[1, 0]],
        history=[[1]],
        num_prompt_tokens=1,
        repetition_penalty=2.0,
        temperature=0.0,
    )
    assert CPU.sample(logits, settings)[0] == 0
    np.testing.assert_allclose(logits, [[1.0, 1.0, -np.inf]])


def test_greedy_takes_the_lowest_of_equal_ids(isa: str) -> None:
    for vocab in (3, 16, 40, 2000):
        logits = np.zeros((3, vocab), np.float32)
        logits[0, [vocab - 1, vocab // 2]] = 4
        logits[1] = -np.inf
        logits[1, vocab - 1] = -3
        tokens = CPU.sample(logits, batch(3, temperature=0.0))
        assert tokens.tolist() == [vocab // 2, vocab - 1, 0]


@pytest.mark.parametrize("vocab", [2, 40])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_choice_is_minus_one(isa: str, vocab: int, temperature: float) -> None:
    logits = np.zeros((5, vocab), np.float32)
    logits[0, 1] = np.nan
    logits[1, vocab - 1] = np.inf
    logits[2] = -np.inf
    logits[3, 0] = -np.inf
    bias = [{}, {}, {}, {}, dict.fromkeys(range(vocab), -np.inf)]
    tokens = CPU.sample(logits.copy(), batch(5, temperature=temperature, bias=bias))
    reference = tensors(batch(5, temperature=temperature, bias=bias))
    want = REFERENCE.sample(torch.from_numpy(logits), reference).numpy()
    np.testing.assert_array_equal(tokens, want)
    assert tokens[[0, 1, 2, 4]].tolist() == [-1] * 4
    assert tokens[3] > 0


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 1e6])
def test_extreme_temperatures(isa: str, temperature: float) -> None:
    logits = random_logits(200, 50)
    tokens = CPU.sample(logits.copy(), batch(200, temperature=temperature, top_k=20))
    assert ((tokens >= 0) & (tokens < 50)).all()
    if temperature < 1:
        np.testing.assert_array_equal(tokens, logits.argmax(1))
    else:
        assert len(set(tokens.tolist())) > 20


def test_equal_logits_are_cut_by_id(isa: str) -> None:
    logits = np.zeros((500, 3000), np.float32)
    tokens = CPU.sample(logits, batch(500, top_k=7))
    assert set(tokens.tolist()) == set(range(7))
    tokens = CPU.sample(np.zeros((500, 3000), np.float32), batch(500, top_p=0.0009))
    assert set(tokens.tolist()) == set(range(3))


def test_far_tokens_are_cut_exactly(isa: str) -> None:
    """Top-k beyond the near range of the histogram, among tokens of tiny weight."""
    logits = -np.arange(200, dtype=np.float32)[None] * 0.5
    settings = batch(1, top_k=150, bias=[{}])
    logits = np.ascontiguousarray(logits[:, ::-1])
    assert CPU.sample(logits.copy(), settings)[0] >= 50
    hot = np.where(np.arange(200) < 50, -1e30, logits).astype(np.float32)
    np.testing.assert_array_equal(
        CPU.sample(np.repeat(logits, 400, 0), batch(400, top_k=150)),
        CPU.sample(np.repeat(hot, 400, 0), batch(400)),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("history", [[7]]),
        ("bias", [{-1: 1.0}]),
        ("allowed", [[7]]),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedInputError, match="inside the vocabulary"):
        CPU.sample(np.zeros((1, 7), np.float32), batch(1, **{name: value}))


def test_wrong_shapes_are_refused() -> None:
    logits = np.zeros((2, 7), np.float32)
    with pytest.raises(UnsupportedInputError, match=r"temperature must have shape \(2,\)"):
        CPU.sample(logits, batch(3))
    broken = batch(2, history=[[1], [2]])
    broken.history_offsets[1] = 5
    with pytest.raises(UnsupportedInputError, match="offsets rise"):
        CPU.sample(logits, broken)
    with pytest.raises(ValueError, match="contiguous"):
        CPU.sample(np.zeros((7, 2), np.float32).T, batch(2))


def test_an_empty_batch_gives_no_tokens(isa: str) -> None:
    assert CPU.sample(np.empty((0, 9), np.float32), batch(0)).shape == (0,)
