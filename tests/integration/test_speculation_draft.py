"""A draft model, and the model itself rounded: the same answers in fewer steps, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.core.model.forward_work import ForwardWork
from quire.core.outputs import RequestOutput
from quire.core.step import StepOutput
from quire.runner.step_estimate import StepEstimate
from quire.speculative.drafters.draft_prefill import LEAST_TOKENS, MOST_PAIRS, DraftPrefill
from tests.integration.conftest import FAMILIES, once
from tests.sizes import sized

TINY = ASSETS / "quire-tiny"
DRAFT = ASSETS / "quire-tiny-draft"
PROMPTS = [
    "Once upon a time, there was a little girl who",
    "The dog ran to the park and",
    "Question: What is the color of the sky?\nAnswer:",
    "List three fruits.",
]
KINDS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
    "logprobs": {"temperature": 0.8, "top_p": 0.9, "logprobs": 3, "prompt_logprobs": 1},
    "penalties": {"temperature": 0.7, "frequency_penalty": 0.6, "repetition_penalty": 1.2},
    "n": {"temperature": 0.8, "n": 3},
    "bounds": {
        "temperature": 0.5,
        "min_tokens": sized(18, 30),
        "stop": ["."],
        "logit_bias": {5: -4.0},
    },
}
#: They run short of sequences that each generate half of what ``--all`` has them generate.
FEW_BLOCKS = sized(20, 28)

Create = Callable[..., LLM]
Answers = Callable[..., list[RequestOutput]]
Result = tuple[Any, ...]


def draft_model(tokens: int = 4, model: Path = DRAFT, **further: Any) -> dict[str, Any]:
    """Return the setting of a draft model with a fixed number of tokens a round."""
    method = {"method": "draft_model", "model": str(model)}
    return {**method, "num_speculative_tokens": tokens, "adaptive": False, **further}


@pytest.fixture
def create(create_llm: Create, device: str) -> Create:
    """Return a maker of quire-tiny, by the native kernels: torch does not promise equal bits."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")

    def make(**settings: Any) -> LLM:
        return create_llm(TINY, **settings)

    return make


def results(outputs: list[RequestOutput]) -> list[Result]:
    """Return everything of answers that speculation must not change."""
    return [
        (
            o.prompt_logprobs,
            *((c.token_ids, c.text, c.logprobs, c.finish_reason) for c in o.outputs),
        )
        for o in outputs
    ]


def params(kind: str, tokens: int = 60) -> list[SamplingParams]:
    """Return settings for each prompt, each with another seed."""
    own: dict[str, Any] = {"ignore_eos": True, **KINDS[kind]}
    return [SamplingParams(max_tokens=tokens, seed=i, **own) for i in range(len(PROMPTS))]


def accepted(llm: LLM) -> float:
    """Return which part of the proposed tokens held since the last call."""
    stats = llm.engine.stats()
    stems = "spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens"
    now = [sum(v for k, v in stats.items() if k.startswith(stem + "{")) for stem in stems]
    before = getattr(llm, "counted", [0.0, 0.0])
    llm.counted = now  # type: ignore[attr-defined]
    assert now[1] > before[1], "nothing was proposed"
    return float((now[0] - before[0]) / (now[1] - before[1]))


def num_steps(llm: LLM) -> float:
    return float(llm.engine.stats()["num_steps"])


@pytest.mark.parametrize("sampling", KINDS)
@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 16}, {"threads": 2, "block_size": 8}], ids=str
)
def test_answers_are_the_same(
    create: Create, plain_answers: Answers, sampling: str, settings: dict[str, Any]
) -> None:
    own = params(sampling, sized(24, 60))
    expected = plain_answers(TINY, PROMPTS, own, **settings)
    llm = create(**settings, speculative_config=draft_model())
    assert results(llm.generate(PROMPTS, own)) == results(expected)
    assert accepted(llm) > 0.3


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_one_stream_takes_fewer_steps(create: Create, sampling: str) -> None:
    """SPD-06: with K=4 at least 1.3 times fewer."""
    steps = {}
    for speculative in (None, draft_model()):
        llm = create(speculative_config=speculative)
        for prompt, own in zip(PROMPTS, params(sampling, sized(32, 100)), strict=True):
            llm.generate(prompt, own)
        steps[speculative is None] = num_steps(llm)
    assert steps[True] >= 2 * steps[False]


@pytest.mark.parametrize("tokens", [1, 3, 7])
@pytest.mark.parametrize("sampling", KINDS)
def test_a_draft_that_is_the_model_is_always_right(
    create: Create, sampling: str, tokens: int
) -> None:
    """SPD-04: each round yields all proposals and a token besides."""
    llm = create(speculative_config=draft_model(tokens, TINY))
    llm.generate(PROMPTS, params(sampling, sized(24, 60)))  # more than `min_tokens`
    assert accepted(llm) == 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_of_each_family(
    create_llm: Create, checkpoint: Any, device: str, family: str
) -> None:
    """Windows give blocks back while the draft goes on in the others."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    folder = checkpoint(family)
    prompts = [[5, 6, 7], list(range(8, 29))]
    own = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    settings = {"block_size": 8, "max_num_batched_tokens": 16}
    expected = create_llm(folder, **settings).generate(prompts, own)
    llm = create_llm(folder, **settings, speculative_config=draft_model(4, folder))
    assert results(llm.generate(prompts, own)) == results(expected)
    assert accepted(llm) == 1.0


def test_a_draft_that_sees_further_than_the_model_keeps(
    create_llm: Create, checkpoint: Any, device: str
) -> None:
    """Past the window of the model, which gives back what the draft would read."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    target = checkpoint("tiny-mistral", sliding_window=32)
    own = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    expected = create_llm(target, block_size=8).generate([[5, 6, 7]], own)
    method = draft_model(4, checkpoint("tiny-llama"))
    llm = create_llm(target, block_size=8, speculative_config=method)
    assert results(llm.generate([[5, 6, 7]], own)) == results(expected)
    stats = llm.engine.stats()
    assert 0 < stats['spec_decode_num_draft_tokens{method="draft_model"}'] < 4 * 32


def test_the_model_rounded_is_mostly_right(create: Create, plain_answers: Answers) -> None:
    """SPD-08: int4 drafts for the model itself."""
    llm = create(speculative_config={"method": "self", "quantization": "int4", "adaptive": False})
    for kind in ("greedy", "sampled"):
        llm.engine.reset_prefix_cache()
        own = params(kind, sized(36, 60))
        expected = plain_answers(TINY, PROMPTS, own)
        assert results(llm.generate(PROMPTS, own)) == results(expected)
        assert accepted(llm) >= 0.8


def test_a_warm_prefix_is_drafted_from_as_well_as_a_cold_one(create: Create) -> None:
    llm = create(speculative_config=draft_model())
    story = PROMPTS[0] + llm.generate(PROMPTS[:1], SamplingParams(max_tokens=80))[0].outputs[0].text
    prompts = [story + end for end in ("\nThe end", " Then they", "\nQuestion: Who")]
    own = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    accepted(llm)
    llm.engine.reset_prefix_cache()
    cold = results(llm.generate(prompts[:1], own)), accepted(llm)
    warm = llm.generate(prompts[:1], own)
    assert warm[0].num_cached_tokens > 64
    assert (results(warm), accepted(llm)) == cold
    others = llm.generate(prompts, own)
    assert results(others) == results(create().generate(prompts, own))
    assert accepted(llm) > 0.4


@pytest.mark.parametrize("sampling", ["greedy", "sampled", "n"])
def test_preemption_and_copied_blocks_cost_no_acceptance(create: Create, sampling: str) -> None:
    """With few blocks sequences lose theirs and find some of them again."""
    settings = {"block_size": 8, "max_model_len": 128}
    own = params(sampling, sized(36, 60))
    roomy = create(**settings, speculative_config=draft_model())
    expected = results(roomy.generate(PROMPTS, own))
    usual = accepted(roomy)
    llm = create(
        **settings,
        num_gpu_blocks_override=FEW_BLOCKS,
        looks_ahead=False,
        speculative_config=draft_model(),
    )
    for _ in range(2):
        assert results(llm.generate(PROMPTS, own)) == expected
        assert accepted(llm) > usual - 0.1
    assert llm.engine.stats()["num_preemptions"] > 0


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_draft_makes_up_for_prompts_at_the_pace_of_the_model(
    create: Create, plain_answers: Answers, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """However many tokens it computes at once, the answers are the same."""
    prompts = [prompt * sized(30, 60) for prompt in PROMPTS]
    own = params("sampled", sized(20, 80))
    expected = results(plain_answers(TINY, prompts, own))
    config = draft_model() if method == "draft_model" else {"method": method, "adaptive": False}
    told: list[float] = []

    def paced(tokens: int) -> Callable[[DraftPrefill], int]:
        return lambda catch_up: told.extend(catch_up._target_seconds) or tokens

    num_steps = []
    for tokens in (LEAST_TOKENS, MOST_PAIRS):
        monkeypatch.setattr(DraftPrefill, "num_tokens", paced(tokens))
        llm = create(memory="256MiB", speculative_config=config)
        assert results(llm.generate(prompts, own)) == expected
        assert accepted(llm) > 0
        num_steps.append(llm.engine.stats()["num_steps"])
    assert num_steps[0] > num_steps[1]
    assert told and min(told) > 0.0


@pytest.mark.parametrize("method", ["draft_model", "self", "eagle3", "eagle", "mtp", "medusa"])
def test_what_drafters_compute_is_in_the_estimate(
    create: Create, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Every token of a chain is a pass over the drafter's weights."""
    work: dict[int, list[ForwardWork]] = {}
    add = StepEstimate.add

    def adding(self: StepEstimate, plan: Any, output: StepOutput, seconds: float) -> None:
        num_proposed = sum(result.num_proposed for result in output.results.values())
        work.setdefault(num_proposed, []).append(output.draft_work)
        add(self, plan, output, seconds)

    monkeypatch.setattr(StepEstimate, "add", adding)
    own = {"draft_model": {"model": str(DRAFT)}, "self": {"quantization": "int4"}}.get(method, {})
    settings = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    pool = 'memory_bytes{pool="weights"}'
    weights = once(lambda: create().engine.stats()[pool], "weights")
    for tokens in (1, 2):
        config = {"method": method, "adaptive": False, "num_speculative_tokens": tokens, **own}
        llm = create(speculative_config=config)
        llm.generate(PROMPTS[:1], settings)
    one, two = (work[tokens][-1].read_bytes for tokens in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.05)
    if method != "medusa":  # which has further heads
        assert one >= llm.engine.stats()[pool] - weights
    assert work[2][-1].flops > work[1][-1].flops > 0


def test_answers_go_on_where_the_draft_ends(create: Create, plain_answers: Answers) -> None:
    """SPD-07: beyond its context nothing is proposed."""
    own = params("sampled", sized(60, 100))  # each goes on for long after its prompt and 40 tokens
    expected = plain_answers(TINY, PROMPTS, own)
    limited = create(speculative_config=draft_model(max_model_len=40))
    assert results(limited.generate(PROMPTS, own)) == results(expected)
    within = limited.engine.stats()['spec_decode_num_draft_tokens{method="draft_model"}']
    assert 0 < within < 40 * len(PROMPTS) * 4
    steps = num_steps(limited)
    free = create(speculative_config=draft_model())
    free.generate(PROMPTS, own)
    assert num_steps(free) < steps


def test_layouts_and_caches(create: Create, plain_answers: Answers) -> None:
    for settings in (
        {"kv_layout": "contiguous", "max_model_len": 256, "max_num_seqs": 4},
        {"enable_prefix_caching": False},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "int4"},
        {"use_cache": False},
        {"quantization": "int8"},
        {"dtype": "float32", "kv_canary": "raise"},
    ):
        own = params("sampled", sized(20, 30))[:2]
        expected = plain_answers(TINY, PROMPTS[:2], own, **settings)
        llm = create(**settings, speculative_config=draft_model())
        outputs = llm.generate(PROMPTS[:2], own)
        assert results(outputs) == results(expected), settings
        assert accepted(llm) > 0.3, settings
