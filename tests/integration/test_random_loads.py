"""Random engines under random loads: every request ends once, as it would have ended alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import PromptTooLongError
from quire.core.outputs import RequestOutput
from tests.integration.conftest import FAMILIES
from tests.sizes import sized

Work = dict[str, tuple[list[int], SamplingParams]]


def random_settings(rnd: random.Random) -> dict[str, Any]:
    block_size = rnd.choice([1, 4, 8, 16])
    return {
        "block_size": block_size,
        "num_gpu_blocks_override": rnd.choice([64, 100, 300]) // block_size + 2,
        "max_num_seqs": rnd.choice([2, 4, 8]),
        "max_num_batched_tokens": rnd.choice([3, 8, 17, 64, 512]),
        "long_prefill_token_threshold": rnd.choice([0, 0, 5]),
        "enable_prefix_caching": rnd.random() < 0.6,
        "use_cache": rnd.random() < 0.85,
        "threads": rnd.choice([1, 2]),
    }


def random_work(rnd: random.Random, max_num_seqs: int) -> Work:
    prefixes = [[rnd.randrange(256) for _ in range(40)] for _ in range(2)]
    work: Work = {}
    for number in range(rnd.randrange(2, 14)):
        prompt = rnd.choice(prefixes)[: rnd.randrange(40)]
        prompt = prompt + [rnd.randrange(256) for _ in range(rnd.randrange(1, 20))]
        params = SamplingParams(
            n=min(rnd.choice([1, 1, 1, 2, 3]), max_num_seqs),
            seed=rnd.randrange(99),
            max_tokens=rnd.randrange(1, 25),
            temperature=rnd.choice([0.0, 0.8, 1.3]),
            top_p=rnd.choice([1.0, 0.9]),
            top_k=rnd.choice([0, 20]),
            repetition_penalty=rnd.choice([1.0, 1.2]),
            presence_penalty=rnd.choice([0.0, 0.5]),
            logit_bias=rnd.choice([None, {5: 1.5}]),
            logprobs=rnd.choice([None, 0, 2]),
            prompt_logprobs=rnd.choice([None, None, 1]),
            stop=rnd.choice([None, None, ["a", "\x1b"]]),
            stop_token_ids=rnd.choice([None, [7, 8]]),
            ignore_eos=rnd.random() < 0.5,
        )
        work[str(number)] = (prompt, params)
    return work


def serve(llm: LLM, work: Work, rnd: random.Random) -> dict[str, RequestOutput]:
    """Add the requests at random times, abort some; return how each one that was taken ended."""
    engine, waiting, taken = llm.engine, list(work), []
    ended: dict[str, RequestOutput] = {}
    while waiting or engine.has_unfinished_requests():
        while waiting and rnd.random() < 0.4:
            request_id = waiting.pop()
            try:
                engine.add_request(request_id, *work[request_id])
                taken.append(request_id)
            except PromptTooLongError:  # larger than this engine's pool
                continue
        outputs = []
        if taken and rnd.random() < 0.03:
            outputs += engine.abort_request(rnd.choice(taken))
        if engine.has_unfinished_requests():
            outputs += engine.step()
        for output in outputs:
            if output.finished:
                assert output.request_id not in ended
                ended[output.request_id] = output
        engine.engine.scheduler.kv.check_integrity()
    assert sorted(ended) == sorted(taken)
    assert engine.stats()["kv_cache_usage_perc"] == 0
    return ended


@pytest.mark.parametrize("family", FAMILIES)
def test_every_request_ends_as_it_would_alone(
    checkpoint: Callable[..., Path], create_llm: Callable[..., LLM], device: str, family: str
) -> None:
    if device != "cpu":
        pytest.skip("the reference does not promise equal bits")
    folder = checkpoint(family)
    alone = create_llm(folder, enable_prefix_caching=False)
    num_preemptions = 0.0
    for seed in range(sized(3, 8)):
        rnd = random.Random(seed)
        settings = random_settings(rnd)
        llm = create_llm(folder, looks_ahead=seed % 4 == 0, takes_more=seed % 2 == 0, **settings)
        work = random_work(rnd, settings["max_num_seqs"])
        for request_id, output in serve(llm, work, rnd).items():
            if "abort" not in [sequence.finish_reason for sequence in output.outputs]:
                expected = alone.generate(*work[request_id])[0]
                assert output.outputs == expected.outputs
                assert output.prompt_logprobs == expected.prompt_logprobs
        num_preemptions += llm.engine.stats()["num_preemptions"]
    assert num_preemptions > 0
