"""A byte of a cached block is flipped in memory: what notices, who is told, who is not harmed."""

from __future__ import annotations

import numpy as np
import pytest

from quire import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
FORKED = SamplingParams(temperature=1.0, max_tokens=24, n=3, seed=1, ignore_eos=True)


@pytest.fixture
def native(device):
    if device != "cpu":
        pytest.skip("needs the native cache, whose memory is open to tests")


def perturb(llm, block_id: int, layer: int = 1, byte: int = 5) -> None:
    """Flip one bit of a block."""
    cache = llm.engine.executor.runner.kv_cache
    memory = np.asarray(cache.native.memory)
    blocks = memory.reshape(cache.num_blocks, cache.spec.num_layers, -1)
    blocks[block_id, layer, byte] ^= 4


def cached_blocks(llm) -> set[int]:
    return set(llm.engine.engine.scheduler.kv.pool.cached.values())


def counts(llm) -> tuple[float, float]:
    stats = llm.engine.stats()
    return stats["kv_canary_checks"], stats["kv_canary_failures"]


def warm(llm, prompt):
    """Run a prompt and return its answer and the blocks that were cached for it."""
    before = cached_blocks(llm)
    output = llm.generate({"prompt_token_ids": prompt}, GREEDY)[0].outputs[0].token_ids
    return output, sorted(cached_blocks(llm) - before)


@pytest.mark.usefixtures("native")
def test_raise_ends_the_request_and_drops_the_block(create_llm, prompts):
    llm = create_llm(kv_canary="raise", block_size=4)
    first, second = prompts(40, 33)
    expected, blocks = warm(llm, first)
    others, _ = warm(llm, second)
    again = llm.generate({"prompt_token_ids": first}, GREEDY)[0]
    assert again.outputs[0].token_ids == expected and again.num_cached_tokens == 36
    assert counts(llm) == (9, 0)
    perturb(llm, blocks[3])
    asked = [{"prompt_token_ids": prompt} for prompt in (second, first, second)]
    one, broken, two = llm.generate(asked, GREEDY)
    assert broken.outputs[0].finish_reason == "error"
    assert "[kv_canary] a cached block must not change" in broken.error
    assert one.outputs[0].token_ids == two.outputs[0].token_ids == others
    assert counts(llm)[1] == 1
    assert blocks[3] not in cached_blocks(llm)
    # The prompt is computed anew, right.
    fresh = llm.generate({"prompt_token_ids": first}, GREEDY)[0]
    assert fresh.outputs[0].token_ids == expected
    assert counts(llm)[1] == 1


@pytest.mark.usefixtures("native")
def test_raise_ends_all_sequences_of_a_request(create_llm, prompts):
    llm = create_llm(kv_canary="raise", block_size=4)
    (prompt,) = prompts(30)
    _, blocks = warm(llm, prompt)
    perturb(llm, blocks[0])
    (output,) = llm.generate({"prompt_token_ids": prompt}, FORKED)
    assert [completion.finish_reason for completion in output.outputs] == ["error"] * 3
    (output,) = llm.generate({"prompt_token_ids": prompt}, FORKED)
    assert [completion.finish_reason for completion in output.outputs] == ["length"] * 3


@pytest.mark.usefixtures("native")
def test_log_tells_and_goes_on(create_llm, prompts, caplog):
    llm = create_llm(kv_canary="log", block_size=4)
    (prompt,) = prompts(30)
    _, blocks = warm(llm, prompt)
    perturb(llm, blocks[2])
    (output,) = llm.generate({"prompt_token_ids": prompt}, GREEDY)
    assert output.outputs[0].finish_reason == "length" and output.num_cached_tokens == 28
    assert counts(llm) == (7, 1)
    (record,) = [r for r in caplog.records if "[kv_canary]" in r.getMessage()]
    assert record.levelname == "ERROR" and "1 of 7 reused blocks" in record.getMessage()


@pytest.mark.usefixtures("native")
def test_off_notices_nothing(create_llm, prompts):
    llm = create_llm(block_size=4)
    (prompt,) = prompts(30)
    _, blocks = warm(llm, prompt)
    perturb(llm, blocks[2])
    (output,) = llm.generate({"prompt_token_ids": prompt}, GREEDY)
    assert output.outputs[0].finish_reason == "length"
    assert counts(llm) == (0, 0)


@pytest.mark.parametrize("mode", ["log", "raise"])
def test_tokens_are_the_same_and_there_are_no_false_alarms(create_llm, prompts, mode):
    """Under preemption, sharing within a step, chunks and forks."""
    shared = prompts(24)[0]
    asked = [{"prompt_token_ids": shared[: 8 + i] + prompts(9, seed=i)[0]} for i in range(16)]
    settings = {"block_size": 4, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 32,
                "looks_ahead": False}  # fmt: skip
    plain = create_llm(**settings).generate(asked * 2, FORKED)
    llm = create_llm(kv_canary=mode, **settings)
    watched = llm.generate(asked * 2, FORKED)
    assert [o.outputs for o in watched] == [o.outputs for o in plain]
    assert llm.engine.stats()["num_preemptions"] > 0
    checks, failures = counts(llm)
    assert checks > 20 and failures == 0
