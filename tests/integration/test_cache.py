"""Blocks and prefixes through the whole engine: sharing, preemption, counters, sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, PromptTooLongError
from quire.core.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
Prompts = Callable[..., list[list[int]]]


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[sequence.token_ids for sequence in output.outputs] for output in outputs]


def stats_of(llm: LLM, prompts: Any, params: SamplingParams = GREEDY) -> dict[str, float]:
    before = llm.engine.stats()
    llm.generate(prompts, params)
    after = llm.engine.stats()
    return {
        name: value - before[name] for name, value in after.items() if not isinstance(value, list)
    }


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
def test_block_size_changes_no_token(
    create_llm: Callable[..., LLM], prompts: Prompts, block_size: int
) -> None:
    work = prompts(1, 17, 40, 64)
    expected = create_llm(block_size=4).generate(work, GREEDY)
    assert tokens(create_llm(block_size=block_size).generate(work, GREEDY)) == tokens(expected)


def test_every_split_of_a_prompt_gives_the_same_bits(
    create_llm: Callable[..., LLM], prompts: Prompts, device: str
) -> None:
    if device != "cpu":
        pytest.skip("the reference does not promise equal bits")
    (prompt,) = prompts(17)
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=2)
    whole = create_llm().generate(prompt, params)[0]
    for split in range(1, 17):
        cut = create_llm(long_prefill_token_threshold=split).generate(prompt, params)[0]
        assert (cut.outputs, cut.prompt_logprobs) == (whole.outputs, whole.prompt_logprobs)


def test_prompt_logprobs_in_parts_have_the_same_bits(
    create_llm: Callable[..., LLM], prompts: Prompts, device: str
) -> None:
    """A step has few rows of them where others wait, whatever the prompts' lengths."""
    if device != "cpu":
        pytest.skip("the reference does not promise equal bits")
    llm, several = create_llm(), prompts(40, 9, 150, 7)
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=20)
    expected = llm.generate(several, params)
    scheduler = llm.engine.engine.scheduler
    scheduler.prefill.divides = True  # as if others came meanwhile
    before = scheduler.stats.num_steps
    for output, whole in zip(llm.generate(several, params), expected, strict=True):
        assert (output.outputs, output.prompt_logprobs) == (whole.outputs, whole.prompt_logprobs)
    assert scheduler.stats.num_steps - before > 4


def test_blocks_in_any_physical_order(create_llm: Callable[..., LLM], prompts: Prompts) -> None:
    llm = create_llm(enable_prefix_caching=False, num_gpu_blocks_override=16)
    (prompt,) = prompts(100)
    params = SamplingParams(temperature=0.0, max_tokens=16, logprobs=3, prompt_logprobs=3)
    expected = llm.generate(prompt, params)[0]
    # Requests of mixed lengths end at different steps and leave their blocks out of order.
    lengths = [40, 3, 70, 20, 55, 9, 31]
    mixed = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
    llm.generate(prompts(*lengths, seed=9), mixed)
    llm.engine.add_request("probe", prompt, params)
    final = llm.engine.step()[0]
    block_ids = llm.engine.engine.scheduler.kv.block_ids(
        llm.engine.engine.scheduler.requests["probe"]
    )
    assert block_ids != sorted(block_ids)
    while not final.finished:
        final = llm.engine.step()[0]
    assert final.outputs == expected.outputs
    assert final.prompt_logprobs == expected.prompt_logprobs


def test_a_pool_for_3_of_8_sequences(create_llm: Callable[..., LLM], prompts: Prompts) -> None:
    work = prompts(*[40] * 8)
    params = [SamplingParams(max_tokens=40, seed=i, ignore_eos=True) for i in range(8)]
    expected = create_llm().generate(work, params)
    # 80 tokens are 5 blocks, so 15 hold three of them; one more is the null block.
    llm = create_llm(num_gpu_blocks_override=16, enable_prefix_caching=False, looks_ahead=False)
    outputs = llm.generate(work, params)
    assert tokens(outputs) == tokens(expected)
    assert llm.engine.stats()["num_preemptions"] > 0
    assert outputs[0].metrics.num_preemptions == 0
    assert llm.engine.stats()["kv_cache_usage_perc"] == 0


def test_a_second_request_computes_its_suffix_only(
    create_llm: Callable[..., LLM], prompts: Prompts
) -> None:
    (prefix,) = prompts(256)
    first, second = (prefix + suffix for suffix in prompts(9, 13, seed=6))
    expected = create_llm(enable_prefix_caching=False).generate([first, second], GREEDY)
    llm = create_llm()
    assert stats_of(llm, first)["num_computed_tokens"] == 265 + 15
    assert stats_of(llm, second)["num_computed_tokens"] == 13 + 15
    output = llm.generate(second, GREEDY)[0]
    assert output.num_cached_tokens == 256  # 269 tokens are 16 full blocks
    assert tokens([output]) == tokens(expected[1:])


def test_a_system_prompt_is_computed_once(create_llm: Callable[..., LLM], prompts: Prompts) -> None:
    (system,) = prompts(700)
    questions = [system + question for question in prompts(10, 10, 10, seed=8)]
    one = SamplingParams(temperature=0.0, max_tokens=1)
    llm = create_llm()
    computed = [stats_of(llm, question, one)["num_computed_tokens"] for question in questions]
    # 700 tokens are 43 full blocks of 16 and 12 tokens over, which each question computes again.
    assert computed == [710, 22, 22]
    again = create_llm()
    together = stats_of(again, questions, one)
    assert together["num_computed_tokens"] == 710 + 22 + 22
    assert together["prefix_cache_queries"] == 3 * 710
    assert together["prefix_cache_hits"] == 2 * 688


def test_unique_prompts_hit_nothing(create_llm: Callable[..., LLM], prompts: Prompts) -> None:
    llm = create_llm()
    work = prompts(40, 41, 42)
    assert stats_of(llm, work)["prefix_cache_hits"] == 0


def test_prompt_logprobs_are_complete_on_a_warm_cache(
    create_llm: Callable[..., LLM], prompts: Prompts
) -> None:
    llm = create_llm()
    (prompt,) = prompts(50)
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2)
    cold = llm.generate(prompt, params)[0]
    warm = llm.generate(prompt, params)[0]
    assert cold.prompt_logprobs is not None and len(cold.prompt_logprobs) == 50
    assert warm.prompt_logprobs == cold.prompt_logprobs


def test_four_samples_share_the_prompt_and_copy_once_each(
    create_llm: Callable[..., LLM], prompts: Prompts
) -> None:
    (prompt,) = prompts(33)
    llm = create_llm()
    params = SamplingParams(n=4, seed=3, max_tokens=8, ignore_eos=True)
    counted = stats_of(llm, prompt, params)
    # The last partial block has four holders; the last of them writes without a copy.
    assert counted["num_block_copies"] == 3
    assert counted["num_computed_tokens"] == 33 + 4 * 7
    shared = llm.generate(prompt, params)[0]
    assert len({tuple(sequence.token_ids) for sequence in shared.outputs}) == 4
    alone = SamplingParams(seed=3, max_tokens=8, ignore_eos=True)
    assert tokens(llm.generate(prompt, alone))[0] == tokens([shared])[0][:1]


def test_token_computations_with_and_without_the_cache(
    create_llm: Callable[..., LLM], prompts: Prompts
) -> None:
    (prompt,) = prompts(1)
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    cached, uncached = create_llm(), create_llm(use_cache=False)
    assert stats_of(cached, prompt, params)["num_computed_tokens"] == 100
    assert stats_of(uncached, prompt, params)["num_computed_tokens"] == 5050
    assert tokens(cached.generate(prompt, params)) == tokens(uncached.generate(prompt, params))


def test_forwards_and_query_positions(create_llm: Callable[..., LLM], prompts: Prompts) -> None:
    counted = stats_of(create_llm(), prompts(20))
    assert counted["num_steps"] == 16  # one prefill that gives the first token, 15 decodes
    assert counted["num_computed_tokens"] == 20 + 15


def test_allocated_bytes_are_the_formula(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm(num_gpu_blocks_override=33)
    runner = llm.engine.executor.runner
    assert runner is not None
    # K and V, 3 layers, 2 KV heads of 16 elements in float32, 33 blocks of 16 tokens.
    assert llm.engine.executor.memory.budget.kv_bytes == 2 * 3 * 2 * 16 * 4 * 33 * 16
    nbytes = getattr(runner.kv_cache, "nbytes", None)
    if nbytes is not None:
        assert nbytes == 2 * 3 * 2 * 16 * 4 * 33 * 16


def test_a_shorter_context_is_kept(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm(max_model_len=64)
    with pytest.raises(PromptTooLongError, match="64"):
        llm.generate([[1] * 64], SamplingParams(max_tokens=1))
    output = llm.generate([[1] * 60], SamplingParams(max_tokens=None, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 4
    assert output.outputs[0].finish_reason == "length"


def test_what_does_not_fit_is_explained_with_three_ways_out(
    create_llm: Callable[..., LLM],
) -> None:
    settings = {"max_model_len": 2048, "memory": 2 * 2**20, "max_num_batched_tokens": 256}
    with pytest.raises(ConfigError) as caught:
        create_llm(**settings)
    options = str(caught.value).split("Any of these would fit: ")[1].rstrip(".").split("; ")
    assert len(options) == 3
    for option in options:
        changes: dict[str, Any] = {}
        for flag, value in re.findall(r"--([a-z-]+) (\w+)", option):
            size = int(value[:-3]) * 2**20 if value.endswith("MiB") else value
            changes[flag.replace("-", "_")] = int(size) if str(size).isdigit() else size
        llm = create_llm(**{**settings, **changes})
        assert llm.engine.max_model_len == changes.get("max_model_len", 2048)


def test_a_context_that_was_not_asked_for_is_lowered_to_what_fits(
    create_llm: Callable[..., LLM],
) -> None:
    llm = create_llm(memory=2 * 2**20, max_num_batched_tokens=256)
    assert 16 <= llm.engine.max_model_len < 2048
    assert any("what fits" in line for line in llm.engine.executor.memory.choices)
    longest = [[1] * (llm.engine.max_model_len - 1)]
    assert len(llm.generate(longest, SamplingParams(max_tokens=1))[0].outputs[0].token_ids) == 1


def test_more_than_the_pool_is_refused_at_once(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm(num_gpu_blocks_override=5, max_model_len=2048)
    with pytest.raises(PromptTooLongError, match="KV cache holds"):
        llm.generate([[1] * 70], GREEDY)
    assert len(llm.generate([[1] * 40], GREEDY)[0].outputs[0].token_ids) == 16
