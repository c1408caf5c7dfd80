"""Drafters with KV of their own while requests come and are cancelled: no block is leaked."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from tests.integration.conftest import once
from tests.sizes import sized

TINY = ASSETS / "quire-tiny"
METHODS: list[dict[str, Any]] = [
    {"method": "draft_model", "model": "quire-tiny-draft"},
    {"method": "eagle3"},
    {"method": "eagle"},
    {"method": "mtp"},
    {"method": "medusa"},
    {"method": "ngram"},
    {"method": "eagle3", "tree_width": 3, "tree_depth": 4, "num_speculative_tokens": 11},
]
#: In 60 some fifteen requests come, and as asserted below are cancelled, preempted and drafted for.
ROUNDS = sized(60, 1000)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_many_rounds_with_random_cancels(
    create_llm: Callable[..., LLM], device: str, method: dict[str, Any]
) -> None:
    """Few blocks, so that requests are preempted, too; answers are those without speculation."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    settings: dict[str, Any] = {
        "block_size": 8, "num_gpu_blocks_override": 28, "max_num_seqs": 6, "max_model_len": 128,
        "max_num_batched_tokens": 64, "threads": 1, "looks_ahead": False,
    }  # fmt: skip
    llm = create_llm(TINY, **settings, speculative_config={**method, "adaptive": False})
    engine, draw = llm.engine, random.Random(7)
    cache = engine.engine.scheduler.kv
    asked: dict[str, tuple[list[int], SamplingParams]] = {}
    answers: dict[str, list[int]] = {}
    num_cancelled = 0
    for number in range(ROUNDS):
        if draw.random() < 0.3:
            prompt = [draw.randrange(5, 60) for _ in range(draw.randrange(1, 40))]
            own = SamplingParams(
                temperature=draw.choice([0.0, 0.8]), seed=number, n=draw.choice([1, 1, 2]),
                max_tokens=draw.randrange(1, 60), ignore_eos=True,
            )  # fmt: skip
            asked[name := f"r{len(asked)}"] = prompt, own
            engine.add_request(name, prompt, own)
        if draw.random() < 0.05 and asked:
            num_running = len(engine.engine.scheduler.running)
            engine.abort_request(draw.choice(list(asked)[-8:]))
            num_cancelled += len(engine.engine.scheduler.running) < num_running
        for output in engine.step():
            for sequence in output.outputs:
                if sequence.finish_reason == "length":
                    answers[f"{output.request_id} {sequence.index}"] = list(sequence.token_ids)
        cache.check_integrity()
    for name in asked:
        engine.abort_request(name)
    while engine.has_unfinished_requests():
        engine.step()
        cache.check_integrity()
    stats = engine.stats()
    assert stats['num_kv_blocks{state="used"}'] == 0
    assert any(v for k, v in stats.items() if k.startswith("spec_decode_num_accepted_tokens{"))
    assert stats["num_preemptions"]
    assert num_cancelled > 0
    names = sorted(asked)[:: sized(1, 8)]  # the same of each method
    prompts, params = (list(part) for part in zip(*map(asked.__getitem__, names), strict=True))
    plain = once(
        lambda: create_llm(TINY, **settings).generate(prompts, params), "uncancelled", asked
    )
    expected = {
        f"{name} {sequence.index}": list(sequence.token_ids)
        for name, output in zip(names, plain, strict=True)
        for sequence in output.outputs
    }
    compared = answers.keys() & expected.keys()
    assert len(compared) > 2
    assert {key: answers[key] for key in compared} == {key: expected[key] for key in compared}
