"""KV that a window of all layers has left is given back: the same tokens, fewer blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire import LLM, SamplingParams

WINDOW, BLOCK = 64, 8
SETTINGS: dict[str, Any] = {
    "max_model_len": 1024,
    "block_size": BLOCK,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 4,
}
#: What a step sees and the step itself lie in as many blocks.
MOST_BLOCKS = -(-(WINDOW - 1 + 32) // BLOCK) + 1
LONG = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)


def outputs(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[Any]:
    found = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [output.outputs for output in found]


def test_the_same_tokens_from_a_few_blocks(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]]
) -> None:
    asked = prompts(400, 70, 5, 300, 129)
    params = [
        LONG,
        *(SamplingParams(seed=s, max_tokens=90 + s, n=1 + s % 3) for s in range(1, 5)),
    ]
    expected = outputs(create_llm("tiny-mistral", **SETTINGS, kv_layout="static"), asked, params)
    # Room for two sequences that are far longer than all of the blocks.
    llm = create_llm("tiny-mistral", **SETTINGS, num_gpu_blocks_override=2 * MOST_BLOCKS + 1)
    assert llm.engine.engine.max_total_tokens == 1024
    assert outputs(llm, asked, params) == expected


def test_no_sequence_holds_more_than_its_window_and_a_step(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]]
) -> None:
    # Steps that begin anywhere in a block.
    llm = create_llm("tiny-mistral", **SETTINGS | {"max_num_batched_tokens": 30})
    (ids,) = prompts(700)
    llm.engine.add_request("long", ids, LONG)
    kv, most = llm.engine.engine.scheduler.kv, 0
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
        most = max(most, kv.num_references)
        kv.check_integrity()
    assert most == MOST_BLOCKS


@pytest.mark.parametrize("num_blocks", [None, 2 * MOST_BLOCKS + 1])
def test_a_further_turn_goes_on_from_what_its_window_covers(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    num_blocks: int | None,
) -> None:
    llm = create_llm("tiny-mistral", **SETTINGS, num_gpu_blocks_override=num_blocks)
    (first,) = prompts(320)
    (answer,) = outputs(llm, [first], [LONG])
    turn = [*first, *answer[0].token_ids, 7, 8, 9]
    alone = create_llm("tiny-mistral", **SETTINGS, enable_prefix_caching=False)
    expected = outputs(alone, [turn], [LONG])
    (found,) = llm.generate([{"prompt_token_ids": turn}], LONG)
    assert [found.outputs] == expected
    assert found.num_cached_tokens == (len(turn) - 4) // BLOCK * BLOCK


def test_a_layer_that_sees_all_keeps_all(
    create_llm: Callable[..., LLM], checkpoint: Callable[..., Any]
) -> None:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    for first, window in ((1, None), (0, WINDOW)):
        folder = checkpoint("tiny-qwen2", **{**windows, "max_window_layers": first})
        llm = create_llm(folder, **SETTINGS)
        assert llm.engine.engine.executor.kv_cache_spec.window == window
