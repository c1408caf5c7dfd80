"""Sampling settings through the whole engine; the arithmetic itself is tested with the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams

Prompts = Callable[..., list[list[int]]]


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[..., Path], device: str, small: dict[str, Any]) -> Iterator[LLM]:
    with LLM(str(checkpoint()), device=device, **small) as loaded:
        yield loaded


def sample(llm: LLM, prompt: list[int], **settings: Any) -> list[int]:
    params = SamplingParams(**{"max_tokens": 30, "seed": 4, **settings})
    return llm.generate(prompt, params)[0].outputs[0].token_ids


def test_greedy_is_the_most_likely_token_every_time(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=1)
    output = llm.generate(prompt, params)[0].outputs[0]
    for token, entry in zip(output.token_ids, output.logprobs or [], strict=True):
        assert entry[token].rank == 1 and len(entry) == 1
    assert llm.generate(prompt, params)[0].outputs[0] == output


def test_a_seed_decides_whatever_is_in_the_batch(llm: LLM, prompts: Prompts) -> None:
    mine, *others = prompts(9, 3, 50, 17, 30)
    alone = sample(llm, mine, ignore_eos=True)
    params = SamplingParams(max_tokens=30, seed=4, ignore_eos=True)
    noise = [SamplingParams(max_tokens=7 * i, ignore_eos=True) for i in range(1, 5)]
    outputs = llm.generate([*others, mine], [*noise, params])
    assert outputs[-1].outputs[0].token_ids == alone
    assert sample(llm, mine, seed=5, ignore_eos=True) != alone


def test_without_a_seed_requests_differ(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    first, second = (sample(llm, prompt, seed=None, ignore_eos=True) for _ in range(2))
    assert first != second


def test_only_allowed_tokens(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    found = sample(llm, prompt, allowed_token_ids=[40, 41, 42])
    assert set(found) == {40, 41, 42}


def test_bias_forces_and_forbids(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    assert set(sample(llm, prompt, logit_bias={7: 100.0})) == {7}
    free = sample(llm, prompt, ignore_eos=True)
    bias = dict.fromkeys(free, -float("inf"))
    assert not set(sample(llm, prompt, logit_bias=bias, ignore_eos=True)) & set(free)


def test_bad_words_never_appear(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    letters = llm.get_tokenizer().encode("ab")
    free = SamplingParams(max_tokens=200, seed=4, allowed_token_ids=letters)
    restricted = SamplingParams(
        max_tokens=200, seed=4, allowed_token_ids=letters, bad_words=["aab", "bb"]
    )
    text, other = (llm.generate(prompt, params)[0].outputs[0].text for params in (free, restricted))
    assert "aab" in text and "bb" in text
    assert len(other) == 200 and "aab" not in other and "bb" not in other


def test_repetition_is_punished(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    found = sample(llm, prompt, temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0)
    plain = sample(llm, prompt, temperature=0.0, ignore_eos=True)
    assert len(set(found)) > len(set(plain))
    once = sample(llm, prompt, temperature=0.0, repetition_penalty=1e6, ignore_eos=True)
    assert len(set(once)) == 30 and not set(once) & set(prompt)
    near = {"repetition_penalty": 1e6, "repeat_last_n": 2, "ignore_eos": True}
    found = sample(llm, prompt, temperature=0.0, **near)
    window = [*prompt[-2:], *found]
    assert all(len(set(window[i : i + 3])) == 3 for i in range(len(window) - 2))
    assert len(set(found)) < 30
    none = sample(llm, prompt, temperature=0.0, **near | {"repeat_last_n": 0})
    assert none == plain


def test_endings(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    eos = llm.engine.model_config.eos_token_ids[0]

    def end(**settings: Any) -> tuple[list[int], str | None, int | str | None]:
        params = SamplingParams(max_tokens=6, **settings)
        output = llm.generate(prompt, params)[0].outputs[0]
        return output.token_ids, output.finish_reason, output.stop_reason

    always = {"logit_bias": {eos: 100.0}}
    assert end(**always) == ([eos], "stop", None)
    assert end(**always, ignore_eos=True) == ([eos] * 6, "length", None)
    tokens, reason, _ = end(**always, min_tokens=4)
    assert (tokens.count(eos), len(tokens), reason) == (1, 5, "stop")
    assert end(logit_bias={65: 100.0}, stop_token_ids=[65]) == ([65], "stop", 65)
    assert end(logit_bias={65: 100.0}) == ([65] * 6, "length", None)


def test_a_stop_string_saves_the_steps_behind_it(llm: LLM, prompts: Prompts) -> None:
    (prompt,) = prompts(9)
    (letter,) = llm.get_tokenizer().encode("a")
    before = llm.engine.stats()
    params = SamplingParams(max_tokens=50, stop=["aaa"], logit_bias={letter: 100.0})
    output = llm.generate(prompt, params)[0].outputs[0]
    assert (output.token_ids, output.text) == ([letter] * 3, "")
    assert (output.finish_reason, output.stop_reason) == ("stop", "aaa")
    counted = llm.engine.stats()
    assert counted["num_steps"] - before["num_steps"] == 3
    assert counted["kv_cache_usage_perc"] == 0


def test_all_logprobs_of_the_vocabulary(
    checkpoint: Callable[..., Path], device: str, small: dict[str, Any], prompts: Prompts
) -> None:
    with LLM(str(checkpoint()), device=device, max_logprobs=-1, **small) as everything:
        (prompt,) = prompts(3)
        params = SamplingParams(max_tokens=2, logprobs=-1, prompt_logprobs=-1, ignore_eos=True)
        output = everything.generate(prompt, params)[0]
    for entry in [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]:
        assert entry is not None and len(entry) == 320
        assert sorted(logprob.rank for logprob in entry.values()) == list(range(1, 321))
