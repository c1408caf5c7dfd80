"""Several steps of a head as one call: the same as one step after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from quire.core.errors import UnsupportedInputError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.backend import AttentionSpec, ChainShape, ChainStart
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.matrices.host_tensor import HostTensor
from tests.kernels import sampling_cases

pytestmark = pytest.mark.kernels("linear", "paged_attention", "sample")

BACKEND = CpuBackend(threads=1)
D, V, BLOCK, MAX_BLOCKS = 32, 70, 4, 8


def weights(rows: int, columns: int, seed: int) -> HostTensor:
    values = np.random.default_rng(seed).standard_normal((rows, columns)) / 4
    return HostTensor("w", "float32", values.astype(np.float32))


class Head:
    """A layer of attention over a sum of embedding and feature."""

    def __init__(self, num_rows: int) -> None:
        spec = AttentionSpec(layer=0, num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25)
        angles = np.outer(np.arange(MAX_BLOCKS * BLOCK), 0.9 ** np.arange(8))
        tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.attention = CpuAttention(spec, tables)
        self.cache = CpuKVCache(KVCacheSpec(1, 1, 16, BLOCK, "float32"), 1 + num_rows * MAX_BLOCKS)
        self.embedding, self.qkv, self.head = (
            BACKEND.linear([weights(rows, D, seed)]) for seed, rows in enumerate((V, 64, V))
        )
        self.numbers = np.arange(num_rows, dtype=np.int32)
        self.scale = np.linspace(0.5, 1.5, D, dtype=np.float32)
        shapes = D, D, 64, 32, V
        self.residual, self.normed, self.columns, self.attended, self.logits = (
            np.zeros((num_rows, width), np.float32) for width in shapes
        )

    def __call__(self, batch: ForwardBatch, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        plan = self.attention.plan(batch, self.cache)
        self.embedding.lookup(batch.input_ids, self.residual)
        BACKEND.add_rows(self.residual, features, self.numbers)
        BACKEND.rms_norm(self.residual, self.scale, 1e-5, self.normed)
        self.qkv(self.normed, self.columns)
        self.attention.run(self.columns, plan, self.attended)
        BACKEND.add_rows(self.residual, self.attended, self.numbers)
        self.head(self.residual, self.logits)
        return self.residual, self.logits


def first_step(num_rows: int) -> ForwardBatch:
    """Return rows of 3, 4, ... tokens before, each with blocks of its own, in no order."""
    blocks = np.random.default_rng(1).permutation(num_rows * MAX_BLOCKS).astype(np.int32) + 1
    lengths = np.arange(num_rows, dtype=np.int32) + 3
    tables = blocks.reshape(num_rows, MAX_BLOCKS)
    slots = tables[np.arange(num_rows), lengths // BLOCK].astype(np.int64) * BLOCK + lengths % BLOCK
    return ForwardBatch(
        input_ids=np.arange(num_rows, dtype=np.int32) * 7 % V,
        positions=lengths,
        slot_mapping=slots,
        block_tables=tables,
        query_start_loc=np.arange(num_rows + 1, dtype=np.int32),
        seq_lens=lengths + np.int32(1),
        logits_indices=np.arange(num_rows, dtype=np.int32),
    )


def features_of(num_rows: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((num_rows, D)).astype(np.float32)


def start(num_rows: int, **changed: np.ndarray) -> ChainStart:
    first = first_step(num_rows)
    begin = ChainStart(
        first.input_ids,
        first.positions,
        first.seq_lens,
        first.block_tables,
        features_of(num_rows),
    )
    return replace(begin, **changed)


def settings(num_rows: int) -> SamplingBatch:
    """Return greedy and sampled rows, with seeds and positions of their own."""
    rng = np.random.default_rng(3)
    return sampling_cases.batch(
        num_rows,
        temperature=rng.choice([0.0, 0.7, 1.3], num_rows),
        top_p=rng.choice([0.8, 1.0], num_rows),
        top_k=rng.choice([0, 5], num_rows),
        seed=rng.integers(0, 2**63, num_rows),
        position=rng.integers(0, 40, num_rows),
    )


def one_by_one(head: Head, num_rows: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    batch, features, sampling = first_step(num_rows), features_of(num_rows), settings(num_rows)
    drawn = []
    for _ in range(steps):
        outputs, logits = head(batch, features)
        features = outputs.copy()
        drawn.append(BACKEND.sample(logits, sampling))
        sampling = replace(sampling, position=sampling.position + 1)
        lengths = batch.seq_lens
        slots = [
            table[n // BLOCK] * BLOCK + n % BLOCK
            for table, n in zip(batch.block_tables, lengths, strict=True)
        ]
        batch = replace(
            batch,
            input_ids=drawn[-1],
            positions=batch.positions + np.int32(1),
            slot_mapping=np.array(slots, np.int64),
            seq_lens=lengths + np.int32(1),
        )
    return np.stack(drawn), features


@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_steps_of_one_call_are_those_of_many(isa: str, num_rows: int, steps: int) -> None:
    expected, outputs = one_by_one(Head(num_rows), num_rows, steps)
    head = Head(num_rows)
    chain = BACKEND.draft_chain(head, ChainShape(num_rows, MAX_BLOCKS, BLOCK, D))
    assert chain is not None
    for _ in range(2):  # the second call computes the same positions again
        tokens = chain.run(start(num_rows), settings(num_rows), steps)
        np.testing.assert_array_equal(tokens, expected)
        np.testing.assert_array_equal(chain.outputs, outputs)


def test_settings_given_are_left_alone() -> None:
    chain = BACKEND.draft_chain(Head(2), ChainShape(2, MAX_BLOCKS, BLOCK, D))
    begin, sampling = start(2), settings(2)
    assert chain is not None
    chain.run(begin, sampling, 3)
    np.testing.assert_array_equal(sampling.position, settings(2).position)
    np.testing.assert_array_equal(begin.positions, start(2).positions)


def test_fewer_blocks_than_the_most_are_enough() -> None:
    expected, _ = one_by_one(Head(2), 2, 3)
    chain = BACKEND.draft_chain(Head(2), ChainShape(2, MAX_BLOCKS, BLOCK, D))
    assert chain is not None
    few = start(2, block_tables=first_step(2).block_tables[:, :2].copy())
    np.testing.assert_array_equal(chain.run(few, settings(2), 3), expected)


def test_a_row_without_a_token_ends_it() -> None:
    chain = BACKEND.draft_chain(Head(2), ChainShape(2, MAX_BLOCKS, BLOCK, D))
    assert chain is not None
    features = features_of(2)
    features[1] = np.nan
    tokens = chain.run(start(2, features=features), settings(2), 4)
    assert tokens.shape == (1, 2)
    assert tokens[0, 0] >= 0
    assert tokens[0, 1] == -1


@pytest.mark.parametrize("wrong", ["blocks", "id", "token"])
def test_what_is_out_of_range_is_refused_each_time(wrong: str) -> None:
    chain = BACKEND.draft_chain(Head(2), ChainShape(2, MAX_BLOCKS, BLOCK, D))
    assert chain is not None
    begin, steps = start(2), 3
    if wrong == "blocks":
        steps = MAX_BLOCKS * BLOCK  # past the table
    elif wrong == "id":
        blocks = begin.block_tables.copy()
        blocks[1, 0] = 1000
        begin = start(2, block_tables=blocks)
    else:
        begin = start(2, input_ids=np.array([0, V], np.int32))
    for _ in range(2):
        with pytest.raises(UnsupportedInputError):
            chain.run(begin, settings(2), steps)
    assert len(chain.run(start(2), settings(2), 3)) == 3


def in_numpy(head: Head) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return a head that does a part in numpy, which is no native call."""

    def forward(batch: ForwardBatch, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs, logits = head(batch, features)
        outputs *= np.float32(1.5)
        return outputs, logits

    return forward


def of_new_arrays(head: Head) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return a head whose feature is copied to an array that the next call does not have."""
    return lambda batch, features: head(batch, features + np.float32(0.25))


@pytest.mark.parametrize("change", [in_numpy, of_new_arrays])
def test_what_is_not_all_native_calls_is_no_chain(change: Callable[[Head], object]) -> None:
    assert BACKEND.draft_chain(change(Head(2)), ChainShape(2, MAX_BLOCKS, BLOCK, D)) is None


def test_one_recording_at_a_time() -> None:
    def forward(batch: ForwardBatch, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        BACKEND.draft_chain(Head(2), ChainShape(2, MAX_BLOCKS, BLOCK, D))
        return features, features

    with pytest.raises(RuntimeError, match=r"\[recording\] one at a time"):
        BACKEND.draft_chain(forward, ChainShape(2, MAX_BLOCKS, BLOCK, D))
    test_settings_given_are_left_alone()  # nothing is left open


def test_a_failing_step_closes_the_recording() -> None:
    def forward(batch: ForwardBatch, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        BACKEND.draft_chain(forward, ChainShape(2, MAX_BLOCKS, BLOCK, D))
    test_settings_given_are_left_alone()
