"""Beam search against a literal one: every sequence computed from its first token, each step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire import LLM, BeamSearchParams, SamplingParams
from quire.core.errors import InvalidSamplingParamsError, PromptTooLongError

PROMPTS = [[5, 9, 200, 31, 7], list(range(40, 73)), [3]]


def literal(llm: LLM, prompt, width, num_tokens, penalty, eos_token_ids):
    """Return ``(score, tokens, log-probability)`` of the best sequences, best first."""
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=2 * width, ignore_eos=True)
    beams, ended = [(0.0, list(prompt))], []
    for _ in range(num_tokens):
        longer = []
        outputs = llm.generate([tokens for _, tokens in beams], params)
        for (logprob, tokens), output in zip(beams, outputs, strict=True):
            for token_id, found in output.outputs[0].logprobs[0].items():
                item = (logprob + found.logprob, [*tokens, token_id])
                (ended if token_id in eos_token_ids else longer).append(item)
        beams = sorted(longer, key=lambda item: -item[0])[:width]

    def score(item):
        return item[0] / (len(item[1]) - (item[1][-1] in eos_token_ids)) ** penalty

    best = sorted([*ended, *beams], key=lambda item: -score(item))[:width]
    return [(score(item), item[1], item[0]) for item in best]


def found(output):
    return [(one.score, one.tokens, one.cum_logprob) for one in output.sequences]


@pytest.fixture
def plain(create_llm) -> LLM:
    """An engine that keeps nothing from one request to the next."""
    return create_llm(enable_prefix_caching=False)


@pytest.mark.parametrize("settings", [{}, {"enable_prefix_caching": False}, {"block_size": 64}])
@pytest.mark.parametrize(("width", "penalty"), [(1, 1.0), (3, 1.0), (5, 2.0), (4, -0.5)])
def test_equals_a_literal_search(plain, create_llm, width, penalty, settings) -> None:
    llm = create_llm(**settings)
    params = BeamSearchParams(width, 6, length_penalty=penalty, ignore_eos=True)
    outputs = llm.beam_search(PROMPTS, params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert found(output) == literal(plain, prompt, width, 6, penalty, ())
        assert {one.finish_reason for one in output.sequences} == {"length"}
        for one in output.sequences:
            assert one.text == llm.get_tokenizer().decode(one.tokens)
            assert len(one.logprobs) == 6
    assert llm.engine.engine.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_layout": "contiguous"},  # shares nothing
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 8},
        {"kv_canary": "raise"},
    ],
)
def test_whatever_the_engine_s_settings(plain, create_llm, settings) -> None:
    llm = create_llm(**settings)
    outputs = llm.beam_search(PROMPTS, BeamSearchParams(3, 5, ignore_eos=True))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert found(output) == literal(plain, prompt, 3, 5, 1.0, ())
    assert llm.engine.engine.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
def test_sequences_that_end(plain, create_llm, penalty) -> None:
    llm = create_llm()
    ends = tuple(range(0, 256, 9))
    llm.engine.model_config = replace(llm.engine.model_config, eos_token_ids=ends)
    params = BeamSearchParams(4, 8, length_penalty=penalty)
    (output,) = llm.beam_search([PROMPTS[1]], params)
    expected = literal(plain, PROMPTS[1], 4, 8, penalty, ends)
    assert found(output) == expected
    reasons = [one.finish_reason for one in output.sequences]
    assert reasons == ["stop" if tokens[-1] in ends else "length" for _, tokens, _ in expected]
    assert "stop" in reasons
    ignoring = replace(params, ignore_eos=True)
    assert found(llm.beam_search([PROMPTS[1]], ignoring)[0]) == literal(
        plain, PROMPTS[1], 4, 8, penalty, ()
    )


@pytest.mark.parametrize("size", [31, 32, 40])
def test_blocks_are_shared_and_nothing_is_computed_twice(create_llm, size) -> None:
    llm = create_llm(block_size=8, enable_prefix_caching=False)
    scheduler, width, length = llm.engine.engine.scheduler, 4, 12
    plans, used = [], []
    step = llm.engine.step

    def watch(*arguments):
        outputs = step(*arguments)
        scheduler.kv.check_integrity()
        used.append(scheduler.kv.pool.num_used)
        return outputs

    schedule = scheduler.schedule
    llm.engine.step = watch
    scheduler.schedule = lambda *a: plans.append(schedule(*a)) or plans[-1]
    llm.beam_search([list(range(size))], BeamSearchParams(width, length, True))
    assert sum(plan.num_scheduled_tokens for plan in plans) == size + width * (length - 1)
    # What the prompt fills is held once; each beam has its own after that, and while it is
    # continued a copy of the last block.
    own = -(-(size % 8 + length) // 8)
    assert max(used) <= size // 8 + width * (own + 1)
    assert scheduler.kv.pool.num_used == 0


def test_a_pool_that_is_too_small_for_all_beams(plain, create_llm) -> None:
    """What was kept is given up and computed again; the search comes to the same end."""
    probe = create_llm()
    block = probe.engine.engine.scheduler.kv.spec.block_bytes
    num_tokens = 6 * probe.engine.engine.scheduler.kv.block_size
    small = create_llm(kv_cache_memory_bytes=7 * block, max_model_len=num_tokens)
    prompt = list(range(20))
    (output,) = small.beam_search([prompt], BeamSearchParams(5, 30, True))
    assert found(output) == literal(plain, prompt, 5, 30, 1.0, ())
    assert small.engine.engine.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 5), "beam_width"),
        ((129, 5), "beam_width"),
        ((True, 5), "beam_width"),
        ((2, 0), "max_tokens"),
        ((2, 5, False, 0.7), "temperature"),
        ((2, 5, False, 0.0, float("nan")), "length_penalty"),
        ((2, 5, False, 0.0, "1"), "length_penalty"),
        ((2, 5, False, 0.0, 11), "length_penalty"),
    ],
)
def test_settings_out_of_range(arguments, name) -> None:
    with pytest.raises(InvalidSamplingParamsError) as caught:
        BeamSearchParams(*arguments)
    assert caught.value.param == name and f"[{name}]" in str(caught.value)


def test_what_does_not_fit_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError, match="max_tokens"):
        llm.beam_search([[1, 2, 3]], BeamSearchParams(2, 10**6))
    with pytest.raises(InvalidSamplingParamsError, match=r"\[beam_width\].*--max-logprobs"):
        llm.beam_search([[1, 2, 3]], BeamSearchParams(100, 2))
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.engine.scheduler.kv.pool.num_used == 0
