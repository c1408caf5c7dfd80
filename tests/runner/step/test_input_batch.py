"""A plan's arrays against hand-made ones, and against a slow construction on random plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.engine_request import EngineRequest
from quire.core.sampling_params import SamplingParams
from quire.core.step import NewRequest, ScheduledRequest, SchedulerOutput
from quire.runner.step.input_batch import InputBatch


class NumpyArrays:
    """The one thing an input batch asks of a backend."""

    def upload(self, arrays: Any) -> Any:
        return arrays


def make_batch(num_rows: int = 4, block_size: int = 4, max_model_len: int = 64) -> InputBatch:
    return InputBatch(
        NumpyArrays(),  # type: ignore[arg-type]
        num_rows=num_rows,
        max_model_len=max_model_len,
        block_size=block_size,
    )


def new(request_id: str, tokens: list[int], blocks: list[int], computed: int = 0) -> NewRequest:
    params = SamplingParams()
    source = EngineRequest(request_id, tokens, params)
    return NewRequest(request_id, tokens, len(tokens), params, 0, blocks, computed, source)


def test_prefill_and_decode_in_one_batch() -> None:
    batch = make_batch()
    batch.add(new("a", [10, 11, 12, 13, 14, 15], [7, 3]))
    batch.add(new("b", [20, 21, 22, 23, 24], [5, 9], computed=4))
    step = batch.build(
        [ScheduledRequest("b", 4, 1, [], True), ScheduledRequest("a", 1, 4, [], False)]
    )
    assert step.input_ids.tolist() == [24, 11, 12, 13, 14]
    assert step.positions.tolist() == [4, 1, 2, 3, 4]
    assert step.slot_mapping.tolist() == [9 * 4, 7 * 4 + 1, 7 * 4 + 2, 7 * 4 + 3, 3 * 4]
    assert step.block_tables.tolist() == [[5, 9], [7, 3]]
    assert step.query_start_loc.tolist() == [0, 1, 5]
    assert step.seq_lens.tolist() == [5, 5]
    assert step.logits_indices.tolist() == [0]
    types = [a.dtype for a in (step.input_ids, step.positions, step.block_tables)]
    assert types == [np.int32] * 3
    assert step.slot_mapping.dtype == np.int64
    assert (
        step.query_start_loc.dtype == step.seq_lens.dtype == step.logits_indices.dtype == np.int32
    )


def test_news_of_a_plan_reach_the_block_tables() -> None:
    batch = make_batch()
    batch.add(new("a", [1, 2, 3, 4], [2]))
    batch.update_blocks(
        SchedulerOutput(
            scheduled=[ScheduledRequest("a", 4, 1, [8], True)], replaced_blocks=[("a", 0, 6)]
        )
    )
    assert batch.table.block_ids[batch.table.rows["a"], :3].tolist() == [6, 8, 0]


def test_fork_copies_tokens_and_blocks_but_shares_nothing() -> None:
    batch = make_batch()
    batch.add(new("a", [1, 2, 3], [2]))
    child = batch.table.fork("a", "b")
    parent = batch.table.rows["a"]
    batch.table.append_tokens(np.array([parent, child], np.int32), np.array([7, 8], np.int32))
    assert batch.table.tokens(parent).tolist() == [1, 2, 3, 7]
    assert batch.table.tokens(child).tolist() == [1, 2, 3, 8]
    assert batch.table.block_ids[child, 0] == 2
    assert batch.table.num_prompt_tokens[child] == 3


def test_rows_grow_and_are_reused_without_traces() -> None:
    batch = make_batch(num_rows=1)
    for i in range(5):
        batch.add(new(str(i), [i] * (i + 1), [i + 1, i + 2]))
    assert sorted(batch.table.rows.values()) == list(range(5))
    row = batch.table.remove("3")
    assert batch.table.remove("3") is None
    assert batch.add(new("x", [9], [4])) == row
    assert batch.table.block_ids[row, :2].tolist() == [4, 0]
    assert batch.table.tokens(row).tolist() == [9]


def test_resumed_request_replaces_its_old_self() -> None:
    batch = make_batch()
    batch.add(new("a", [1, 2, 3], [2, 3]))
    resumed = new("a", [1, 2, 3, 4], [5])
    resumed.num_prompt_tokens = 3
    row = batch.add(resumed)
    assert batch.table.tokens(row).tolist() == [1, 2, 3, 4]
    assert batch.table.num_prompt_tokens[row] == 3
    assert batch.table.block_ids[row, :2].tolist() == [5, 0]


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
def test_equals_a_token_by_token_construction(block_size: int) -> None:
    random = np.random.default_rng(block_size)
    batch = make_batch(num_rows=8, block_size=block_size, max_model_len=600)
    lengths = random.integers(1, 600, 20).tolist()
    tokens = {str(i): random.integers(0, 999, n).tolist() for i, n in enumerate(lengths)}
    blocks = {
        k: random.permutation(700)[: -(-len(v) // block_size)].tolist() for k, v in tokens.items()
    }
    for request_id, ids in tokens.items():
        batch.add(new(request_id, ids, blocks[request_id]))
    scheduled = []
    for request_id, ids in tokens.items():
        start = int(random.integers(0, len(ids)))
        count = int(random.integers(1, len(ids) - start + 1))
        scheduled.append(ScheduledRequest(request_id, start, count, [], start + count == len(ids)))
    step = batch.build(scheduled)
    places = [
        (r.request_id, p)
        for r in scheduled
        for p in range(r.num_computed_tokens, r.num_computed_tokens + r.num_scheduled_tokens)
    ]
    assert step.input_ids.tolist() == [tokens[k][p] for k, p in places]
    assert step.positions.tolist() == [p for _, p in places]
    assert step.slot_mapping.tolist() == [
        blocks[k][p // block_size] * block_size + p % block_size for k, p in places
    ]
    for i, request in enumerate(scheduled):
        own = blocks[request.request_id][: len(step.block_tables[i])]
        assert step.block_tables[i, : len(own)].tolist() == own
        needed = -(-int(step.seq_lens[i]) // block_size)
        assert len(own) >= needed


def test_tokens_survive_a_wider_table() -> None:
    batch = make_batch(max_model_len=5000)
    batch.add(new("a", list(range(250)), [1]))
    row = batch.table.rows["a"]
    for token in range(250, 300):
        batch.table.append_tokens(np.array([row], np.int32), np.array([token], np.int32))
    batch.add(new("b", list(range(4000)), [2]))
    assert batch.table.tokens(row).tolist() == list(range(300))
    assert batch.table.tokens(batch.table.rows["b"]).tolist() == list(range(4000))
