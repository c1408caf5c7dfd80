"""The engine end to end on a simulated paged cache: equal tokens in every scenario."""

from __future__ import annotations

import random

import pytest

from quire.core.sampling_params import SamplingParams
from quire.engine.request import sequence_seed

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 7919 + length).choices(range(1000), k=length)


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
def test_tokens_equal_the_oracle_for_every_block_size(start, unpaged, block_size):
    """PAG-01."""
    run = start(num_blocks=2000 // block_size, block_size=block_size, max_num_batched_tokens=64)
    prompts = {f"r{i}": prompt_of(length, i) for i, length in enumerate([1, 15, 16, 17, 33, 100])}
    for request_id, prompt in prompts.items():
        run.add(request_id, prompt, max_tokens=20)
    run.finish()
    for request_id, prompt in prompts.items():
        assert run.tokens[request_id, 0] == unpaged(prompt, GREEDY, 0, 20)


def test_n_sequences_copy_the_shared_partial_block(start, unpaged):
    """PAG-07: a 33-token prompt and n=4 cost 3 copies; outputs equal unshared runs."""
    run = start()
    run.add("r", prompt_of(33), n=4, max_tokens=40, temperature=1.0, seed=5)
    run.step()
    assert [run.kv.pool.ref_cnt[b] for b in run.executor.held["r"].block_ids] == [4, 4, 4]
    run.finish()
    assert sum(len(plan.block_copies) for plan in run.plans) == 3
    for index in range(4):
        seed = sequence_seed(5, index)
        assert run.tokens["r", index] == unpaged(prompt_of(33), SAMPLED, seed, 40)


def test_preemption_keeps_tokens(start, unpaged):
    """PAG-12: a pool for 3 of 8 sequences; the oldest is never preempted."""
    run = start(num_blocks=1 + 3 * 5)
    for i in range(8):
        run.add(f"r{i}", prompt_of(40, i), max_tokens=40)
    run.finish()
    for i in range(8):
        assert run.tokens[f"r{i}", 0] == unpaged(prompt_of(40, i), GREEDY, 0, 40)
    assert run.engine.stats()["num_preemptions"] > 0
    assert all(o.metrics.num_preemptions == 0 for o in run.outputs if o.request_id == "r0")
