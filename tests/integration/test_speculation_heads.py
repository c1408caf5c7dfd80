"""Heads that read the model's states: the same answers with them, bit for bit; errors at start."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.core.errors import ConfigError
from quire.core.outputs import RequestOutput
from quire.core.speculative_params import SpeculativeParams
from quire.kernels.cpu.backend import CpuBackend
from quire.runner.step.drafts.engine_proposers import EngineProposers
from tests.draft_heads import medusa_tensors, write_head
from tests.integration.conftest import fewer, share
from tests.integration.test_speculation_draft import FEW_BLOCKS
from tests.sizes import sized

TINY = ASSETS / "quire-tiny"
D, V = 256, 2048
METHODS = ["medusa", "eagle", "eagle3", "mtp"]
HEADS = ASSETS / "quire-tiny-heads"
PROMPTS = [
    "Once upon a time, there was a little girl who",
    "The dog ran to the park and",
    "Question: What is the color of the sky?\nAnswer:",
    "List three fruits.",
]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
    "logprobs": {"temperature": 0.8, "top_p": 0.9, "logprobs": 3, "prompt_logprobs": 1},
    "n": {"temperature": 0.8, "n": 3},
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 8, "block_size": 8},
    {
        "block_size": 8,
        "max_model_len": 128,
        "num_gpu_blocks_override": FEW_BLOCKS,
        "looks_ahead": False,
    },
    {"kv_layout": "contiguous", "max_model_len": 256, "max_num_seqs": 4},
    {"use_cache": False},
    {"quantization": "int8", "threads": 2},
]

Create = Callable[..., LLM]
Answers = Callable[..., list[RequestOutput]]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a folder of heads for quire-tiny by method: those in the package, or random ones."""
    random = write_head(tmp_path_factory.mktemp("medusa"), medusa_tensors(D, num_heads=4))
    return {"medusa": random, **{method: HEADS / method for method in METHODS[1:]}}


@pytest.fixture
def create(create_llm: Create, device: str) -> Create:
    """Return a maker of quire-tiny, by the native kernels: torch does not promise equal bits."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")

    def make(**settings: Any) -> LLM:
        return create_llm(TINY, **settings)

    return make


def speculative(method: str, folder: Path, **further: Any) -> dict[str, Any]:
    return {"method": method, "model": str(folder), "adaptive": False, **further}


def results(outputs: list[RequestOutput]) -> list[tuple[Any, ...]]:
    """Return everything of answers that speculation must not change."""
    return [
        (
            o.prompt_logprobs,
            *((c.token_ids, c.text, c.logprobs, c.finish_reason) for c in o.outputs),
        )
        for o in outputs
    ]


def params(kind: str, tokens: int = 40) -> list[SamplingParams]:
    """Return settings for each prompt, each with another seed."""
    own = {"ignore_eos": True, **KINDS[kind]}
    return [SamplingParams(max_tokens=tokens, seed=i, **own) for i in range(len(PROMPTS))]


def count(llm: LLM, stem: str) -> float:
    stats = llm.engine.stats()
    return sum(v for name, v in stats.items() if name.startswith(f"spec_decode_num_{stem}{{"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_are_the_same(
    create: Create,
    plain_answers: Answers,
    heads: dict[str, Path],
    method: str,
    settings: dict[str, Any],
) -> None:
    llm = create(**settings, speculative_config=speculative(method, heads[method]))
    number = METHODS.index(method) + SETTINGS.index(settings)
    tokens = sized(30 if "num_gpu_blocks_override" in settings else 20, 40)
    for kind in share(KINDS, number, len(KINDS), settings):
        proposed = count(llm, "draft_tokens")
        own = params(kind, fewer(tokens, settings))
        expected = results(plain_answers(TINY, PROMPTS, own, **settings))
        assert results(llm.generate(PROMPTS, own)) == expected
        assert count(llm, "draft_tokens") >= proposed + fewer(sized(50, 100), settings)
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats()["num_preemptions"] > 0


def test_all_of_them_in_one_engine(create: Create) -> None:
    """Each is told its own states out of one step, and drafts as well as alone."""
    methods = [{"method": method, "adaptive": False} for method in METHODS]
    lines = (TINY / "eval" / "questions.jsonl").read_text("utf-8").splitlines()[: sized(16, 32)]
    questions = [json.loads(line)["messages"][:1] for line in lines]
    kinds: list[dict[str, Any]] = [{}, {"prompt_logprobs": 1}, {"n": 2, "logprobs": 1}]
    own = [
        SamplingParams(temperature=0.5, seed=i, max_tokens=60, **kinds[i % len(kinds)])
        for i in range(len(questions))
    ]
    expected = results(create().chat(questions, own))
    llm = create(speculative_config=methods, max_num_batched_tokens=96)
    chosen = [
        replace(params, speculative=SpeculativeParams(method=METHODS[i % len(METHODS)]))
        for i, params in enumerate(own)
    ]
    assert results(llm.chat(questions, chosen)) == expected
    stats = llm.engine.stats()
    for method in METHODS:
        label = f'{{method="{method}"}}'
        held = stats[f"spec_decode_num_accepted_tokens{label}"]
        assert held > 0.8 * stats[f"spec_decode_num_drafts{label}"] > 0, method


@pytest.mark.parametrize("method", METHODS)
def test_heads_of_another_model_are_refused(
    create_llm: Create, heads: dict[str, Path], method: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        create_llm("tiny-llama", speculative_config=speculative(method, heads[method]))
    message = str(caught.value)
    assert message.startswith(
        "[config] --speculative-config must name a drafter that can be loaded"
    )
    assert "must have the hidden size of the model it drafts for" in message


@pytest.mark.parametrize("method", METHODS)
def test_a_method_without_its_model_is_refused(create_llm: Create, method: str) -> None:
    with pytest.raises(ConfigError, match=r'"model" must name a folder with heads'):
        create_llm("tiny-llama", speculative_config={"method": method})


@pytest.mark.parametrize("method", METHODS)
def test_heads_in_the_package_draft_well(
    create: Create, plain_answers: Answers, method: str
) -> None:
    """More than two tokens a round, as their training measured; the same answers."""
    lines = (TINY / "eval" / "questions.jsonl").read_text("utf-8").splitlines()[:24]
    questions = [json.loads(line)["messages"][:1] for line in lines]
    llm = create(speculative_config={"method": method, "adaptive": False})
    for temperature in (0.0, 0.8):
        own = SamplingParams(temperature=temperature, seed=1, max_tokens=100)
        before = [count(llm, stem) for stem in ("accepted_tokens", "drafts")]
        expected = results(plain_answers(TINY, questions, own, chats=True))
        assert results(llm.chat(questions, own)) == expected
        after = [count(llm, stem) for stem in ("accepted_tokens", "drafts")]
        assert after[0] - before[0] > 1.0 * (after[1] - before[1])


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_warm_prefix_is_drafted_from_as_a_cold_one(create: Create, method: str) -> None:
    """What the head computed of a prefix is found with it, but for one position."""
    llm = create(speculative_config={"method": method, "adaptive": False})
    own = SamplingParams(temperature=0.0, max_tokens=sized(40, 60))
    # One short answer has too few rounds to compare.
    stories = [
        "Tell me about the moon. " * 20,
        "Tell me a short story about a fox. " * 12,
        "What is the capital of France? " * 14,
        "How many legs does a spider have? " * 14,
        "Write a story about a boat. " * 15,
    ]
    held = []
    for _ in range(2):
        before = [count(llm, stem) for stem in ("accepted_tokens", "drafts")]
        for story in stories:
            outputs = llm.chat([[{"role": "user", "content": story}]], own)
        after = [count(llm, stem) for stem in ("accepted_tokens", "drafts")]
        held.append((after[0] - before[0]) / (after[1] - before[1]))
    assert outputs[0].num_cached_tokens > 64
    assert held[1] > 0.9 * held[0] > 0


@pytest.mark.parametrize("method", METHODS[1:])
def test_drafts_of_one_call_are_those_of_single_steps(
    create: Create, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many are drafted, and hold, for requests that end one after the other."""
    chats: list[Any] = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    own = [
        SamplingParams(temperature=0.6 * (i % 2), seed=i, max_tokens=30 + 20 * i)
        for i in range(len(PROMPTS))
    ]
    stems = "drafts", "draft_tokens", "accepted_tokens"
    found = []
    for _ in range(2):
        llm = create(speculative_config={"method": method, "adaptive": False})
        outputs = results(llm.chat(chats, own))
        found.append((outputs, [count(llm, stem) for stem in stems]))
        monkeypatch.setattr(CpuBackend, "draft_chain", lambda *_: None)
    assert found[0] == found[1]
    assert found[0][1][2] > 0


def test_memory_is_counted(create: Create, heads: dict[str, Path]) -> None:
    alone, both = (
        create(max_model_len=512, speculative_config=config).engine.stats()
        for config in (None, speculative("medusa", heads["medusa"]))
    )
    pools = [f'memory_bytes{{pool="{pool}"}}' for pool in ("weights", "scratch", "kv_cache")]
    more = [both[pool] - alone[pool] for pool in pools]
    assert 8 * D * D * 2 <= more[0] < 8 * D * D * 3
    assert more[1] == 4 * 8 * (3 * D + V)
    assert more[2] == 0


def test_memory_of_a_head_with_a_layer_is_counted(create: Create) -> None:
    executors = [
        create(max_model_len=512, speculative_config=config).engine.engine.executor
        for config in (None, {"method": "eagle3"})
    ]
    stats = [executor.stats() for executor in executors]
    name = 'memory_bytes{pool="weights"}'
    assert 900_000 < stats[1][name] - stats[0][name] < 1_300_000
    head_bytes = 2 * 2 * 32 * 2  # K and V of 2 heads of 32 in 16 bits
    for executor, own, token_bytes in zip(executors, stats, (0, head_bytes), strict=True):
        per_token = own['memory_bytes{pool="kv_cache"}'] / executor.num_blocks
        spec = executor.kv_cache_spec
        assert per_token / spec.block_size == spec.token_bytes + token_bytes


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_kept_for_heads_that_are_not_asked(
    create: Create, heads: dict[str, Path], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States were read, and kept, of each step of an engine whose controller had given up.

    Its proposers were asked for nothing, too: a tenth of a small model's step.
    """
    told: list[Any] = []
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    asleep = create(speculative_config={"method": method, "model": str(heads[method])})
    readiness = asleep.engine.engine.scheduler.lookahead.policy._readiness
    monkeypatch.setattr(type(readiness), "is_ready", lambda self, *_: False)
    monkeypatch.setattr(type(readiness), "keeps_states", False)
    runner = asleep.engine.executor.runner
    assert runner is not None
    proposer = runner._requests.speculation._proposers[method]
    monkeypatch.setattr(type(proposer), "observe", lambda self, computed: told.append(computed))
    monkeypatch.setattr(EngineProposers, "propose", lambda self, *given: told.append(given))
    answers = asleep.generate(PROMPTS, params)
    assert not told
    assert asleep.engine.stats()[f'spec_decode_num_drafts{{method="{method}"}}'] == 0
    plain = create().generate(PROMPTS, params)
    assert [a.outputs[0].token_ids for a in answers] == [p.outputs[0].token_ids for p in plain]
    monkeypatch.undo()  # it is woken, and knows of sequences that begin from now on
    asleep.generate(PROMPTS, params)
    assert asleep.engine.stats()[f'spec_decode_num_drafts{{method="{method}"}}'] > 0
