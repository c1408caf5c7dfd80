"""A thousand short requests at once on a real model: all of them run, and their tokens stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.step import SchedulerOutput
from tests.integration.conftest import once
from tests.sizes import sized

NUM_REQUESTS, NUM_OUTPUT_TOKENS = 1024, sized(10, 24)


def serve(llm: LLM, work: list[list[int]]) -> tuple[dict[int, list[int]], int]:
    """Return the tokens of all, and how many ran at once; a step's tokens take 50 us each."""
    engine, now = llm.engine, 0.0
    scheduler, executor = engine.engine.scheduler, engine.executor
    submit, most = executor.submit, 0

    def counting(plan: SchedulerOutput, request_arrived: Callable[[], bool]) -> Any:
        nonlocal now, most
        now += 0.002 + 5e-5 * plan.num_scheduled_tokens
        most = max(most, len(plan.scheduled))
        return submit(plan, request_arrived)

    executor.submit = counting  # type: ignore[method-assign]
    scheduler._clock = lambda: now
    params = SamplingParams(
        temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True, detokenize=False
    )
    for number, prompt in enumerate(work):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[int(output.request_id)] = output.outputs[0].token_ids
        scheduler.kv.check_integrity()
    return found, most


@pytest.mark.parametrize("target_itl_ms", [None, 150.0])
def test_a_thousand_run_at_once_and_their_tokens_stay(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    target_itl_ms: float | None,
) -> None:
    """With a fixed number of tokens as many end as start."""
    work = prompts(*(6 + i % 9 for i in range(NUM_REQUESTS)))
    settings: dict[str, Any] = {
        "max_num_seqs": NUM_REQUESTS,
        "num_gpu_blocks_override": 1 + 4 * NUM_REQUESTS,
        "takes_more": True,
    }
    expected, most = once(
        lambda: serve(create_llm(**settings, mixed_prefill_tokens=112), work), "as many end"
    )
    assert most < NUM_REQUESTS / 2
    found, most = serve(create_llm(**settings, target_itl_ms=target_itl_ms), work)
    assert most == NUM_REQUESTS
    assert found == expected
