"""Right tokens: against transformers in float32 without a cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from quire import LLM, SamplingParams
from tests.integration.conftest import FAMILIES
from tests.lazy_packages import lazy_package

lazy_package("transformers")
from tests.reference_model import ReferenceModel  # noqa: E402


@cache
def reference(folder: Path) -> ReferenceModel:
    return ReferenceModel(folder)


def test_60_mixed_prompts_in_order(
    checkpoint: Callable[..., Path],
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
) -> None:
    random = np.random.default_rng(1)
    mixed = prompts(*random.integers(1, 90, 60).tolist())
    lengths = random.integers(1, 9, 60).tolist()
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = create_llm(max_num_batched_tokens=64).generate(mixed, params)
    oracle = reference(checkpoint())
    for prompt, length, output in zip(mixed, lengths, outputs, strict=True):
        assert output.prompt_token_ids == prompt
        answer = output.outputs[0].token_ids
        assert len(answer) == length
        assert answer == oracle.greedy(prompt, answer)


HEADS = {"MHA": {"num_key_value_heads": 4}, "GQA": {}, "MQA": {"num_key_value_heads": 1}}


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("split", [3, 7, 16, 33])
def test_cached_log_probabilities_at_every_step(
    checkpoint: Callable[..., Path],
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    heads: str,
    split: int,
) -> None:
    folder = checkpoint("tiny-llama", **HEADS[heads])
    llm = create_llm(folder, max_num_batched_tokens=split)
    (prompt,) = prompts(50)
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=0, prompt_logprobs=0)
    output = llm.generate(prompt, params)[0]
    tokens = prompt + output.outputs[0].token_ids
    expected = reference(folder).logprobs(tokens)
    entries = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
    assert len(entries) == len(tokens) - 1
    for position, entry in enumerate(entries):
        assert entry is not None
        token = tokens[position + 1]
        assert entry[token].logprob == pytest.approx(
            float(expected[position, token]), rel=1e-5, abs=1e-5
        )
        rank = 1 + int((expected[position] > expected[position, token]).sum())
        assert entry[token].rank == rank


@pytest.mark.parametrize("family", FAMILIES)
def test_64_greedy_tokens_of_each_family(
    checkpoint: Callable[..., Path],
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    family: str,
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    work = prompts(5, 40)
    outputs = create_llm(family).generate(work, params)
    oracle = reference(checkpoint(family))
    for prompt, output in zip(work, outputs, strict=True):
        answer = output.outputs[0].token_ids
        assert len(answer) == 64
        assert answer == oracle.greedy(prompt, answer)
