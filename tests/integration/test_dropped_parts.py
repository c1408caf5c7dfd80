"""Parts of prompts given up between layers, on a real model: the tokens are those of always."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.structured_outputs import StructuredOutputs


@pytest.mark.parametrize("seed", range(4))
def test_tokens_are_the_same_whatever_arrives(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    seed: int,
) -> None:
    choose = random.Random(seed)
    settings: dict[str, Any] = {
        "block_size": 4,
        "max_num_seqs": 6,
        "mixed_prefill_tokens": choose.choice([5, 16, 64]),
    }
    shared, *own = prompts(60, *(choose.choice([1, 8, 70, 150]) for _ in range(11)), seed=seed)
    # Half of them begin with what others compute in the same step.
    work = [(shared[: choose.choice([0, 0, 30, 60])] + prompt)[:200] for prompt in own]
    kinds = [
        SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
        SamplingParams(n=3, max_tokens=8, ignore_eos=True, seed=1),
        SamplingParams(logprobs=2, prompt_logprobs=1, max_tokens=8, ignore_eos=True, seed=1),
        SamplingParams(pooling="mean"),
        SamplingParams(structured_outputs=StructuredOutputs(regex="[ab]{6}c{4}"), seed=1),
        SamplingParams(repetition_penalty=1.3, max_tokens=8, ignore_eos=True, seed=1),
    ]
    params = (kinds * 2)[: len(work)]
    expected = create_llm(**settings).generate(work, params)

    engine = create_llm(**settings, takes_more=True).engine
    waiting = list(enumerate(zip(work, params, strict=True)))

    def add() -> None:
        if waiting:
            number, (prompt, settings_of) = waiting.pop(0)
            engine.add_request(str(number), {"prompt_token_ids": prompt}, settings_of)

    found = {}
    add()
    while engine.has_unfinished_requests() or waiting:
        for output in engine.step(lambda: choose.random() < 0.3):
            if output.finished:
                found[int(output.request_id)] = output
        if choose.random() < 0.5:
            add()
    assert engine.stats()["dropped_prompt_parts"] > 0
    for number, other in enumerate(expected):
        output = found[number]
        assert output.error is None
        assert (output.outputs, output.embedding) == (other.outputs, other.embedding)
        assert output.prompt_logprobs == other.prompt_logprobs
    assert engine.stats()["kv_cache_usage_perc"] == 0
    assert "integrity: ok" in engine.describe_cache()
