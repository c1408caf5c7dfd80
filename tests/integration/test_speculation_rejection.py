"""Acceptance by rejection, end to end: other tokens than plain ones, distributed as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scripted_proposer import use_script
from quire import LLM, SamplingParams
from tests.sizes import sized

PROMPT = [5, 9, 30, 7]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0, "top_k": 6},
    "top-p": {"temperature": 0.7, "top_p": 0.9, "top_k": 8},
    "penalties": {"temperature": 1.0, "top_k": 6, "repetition_penalty": 1.3, "min_p": 0.02},
}
NUM_SAMPLES, IN_ONE = sized(1000, 3000), sized(20, 10)


def answers(
    llm: LLM, speculative: Any, settings: dict[str, Any], count: int
) -> list[tuple[int, ...]]:
    """Return answers of three tokens to the prompt, of requests with several sequences each."""
    num = count // IN_ONE
    further = {"max_tokens": 3, "ignore_eos": True, "n": IN_ONE, "speculative": speculative}
    params = [SamplingParams(seed=seed, **further, **settings) for seed in range(num)]
    outputs = llm.generate([PROMPT] * num, params, use_tqdm=False)
    return [tuple(sequence.token_ids) for output in outputs for sequence in output.outputs]


def square(found: Counter[Any], expected: Counter[Any]) -> tuple[float, int]:
    """Chi-square of two samples of one size, rare outcomes joined; and the degrees of freedom."""
    rare = [key for key in found | expected if found[key] + expected[key] < 16]
    pairs = [(found[key], expected[key]) for key in (found | expected) if key not in set(rare)]
    pairs.append((sum(found[key] for key in rare), sum(expected[key] for key in rare)))
    pairs = [(a, b) for a, b in pairs if a + b]
    return sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs) - 1


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_distributed_as_without_speculation(
    checkpoint: Callable[..., Path], device: str, name: str
) -> None:
    """Proposals are what most plain answers to other seeds go on with."""
    settings = SETTINGS[name]
    with LLM(str(checkpoint()), device=device, max_num_seqs=IN_ONE) as llm:
        plain = answers(llm, False, settings, NUM_SAMPLES)
        script = [[*PROMPT, *answer] for answer, _ in Counter(plain).most_common()]
        controller = use_script(
            llm.engine, script, 0.9, num_speculative_tokens=2, adaptive=False,
            acceptance="rejection",
        )  # fmt: skip
        found = answers(llm, None, settings, NUM_SAMPLES)
        accepted = controller.samples()['spec_decode_num_accepted_tokens{method="medusa"}']
    assert accepted > NUM_SAMPLES / 20
    assert found != plain
    for part in (slice(0, 2), slice(0, 3)):
        value, degrees = square(
            Counter(answer[part] for answer in found), Counter(answer[part] for answer in plain)
        )
        assert degrees > 5
        assert value < degrees + 3.3 * np.sqrt(2 * degrees), (part, value, degrees)


def test_greedy_answers_are_the_same(checkpoint: Callable[..., Path], device: str) -> None:
    with LLM(str(checkpoint()), device=device) as llm:
        params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True, logprobs=2)
        plain = llm.generate([PROMPT], params)[0].outputs[0]
        use_script(
            llm.engine, [[*PROMPT, *plain.token_ids]], 0.8, num_speculative_tokens=4,
            adaptive=False, acceptance="rejection",
        )  # fmt: skip
        found = llm.generate([PROMPT], params)[0].outputs[0]
    assert (found.token_ids, found.logprobs) == (plain.token_ids, plain.logprobs)
