"""Trees of proposed tokens: the same answers as without them, bit for bit, in fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams, StructuredOutputs
from quire.checkpoints.embedded import ASSETS
from quire.core.outputs import RequestOutput
from quire.core.step import StepOutput
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.tree_batch import BatchTree, add_trees
from quire.runner.step_estimate import StepEstimate
from tests.integration.conftest import share
from tests.integration.test_speculation_draft import (
    FEW_BLOCKS,
    KINDS,
    PROMPTS,
    accepted,
    params,
    results,
)
from tests.sizes import sized
from tools.random_checkpoint import PRESETS, random_checkpoint

TINY = ASSETS / "quire-tiny"
STATIC = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0)]"
TREES: dict[str, dict[str, Any]] = {
    "static": {"speculative_token_tree": STATIC},
    "grown": {"tree_width": 3, "tree_depth": 4, "num_speculative_tokens": 11},
}
METHODS: dict[str, dict[str, Any]] = {
    "medusa": {},
    "eagle3": {},
    "mtp": {},
    "draft_model": {"model": str(ASSETS / "quire-tiny-draft")},
    "self": {"quantization": "int4"},
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 24, "block_size": 8},
    {
        "block_size": 8,
        "max_model_len": 128,
        "num_gpu_blocks_override": FEW_BLOCKS,
        "looks_ahead": False,
    },
    {"kv_layout": "contiguous", "max_model_len": 256, "max_num_seqs": 4},
    {"enable_prefix_caching": False, "use_cache": False},
    {"kv_cache_dtype": "int8", "threads": 2},
    {"kv_cache_dtype": "fp8_e4m3", "quantization": "int8"},
    {"kv_cache_dtype": "int4", "block_size": 8},
    {"kv_canary": "raise"},
]

Create = Callable[..., LLM]
Answers = Callable[..., list[RequestOutput]]


@pytest.fixture
def create(create_llm: Create, device: str) -> Create:
    """Return a maker of quire-tiny, by the native kernels: torch does not promise equal bits."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")

    def make(model: Path = TINY, **settings: Any) -> LLM:
        return create_llm(model, **settings)

    return make


@pytest.fixture(scope="module")
def chains() -> dict[str, float]:
    """Return steps of chains by method, for both kinds of trees."""
    return {}


def with_tree(method: str, tree: str) -> dict[str, Any]:
    return {"method": method, "adaptive": False, **METHODS[method], **TREES[tree]}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_are_the_same(
    create: Create, plain_answers: Answers, tree: str, settings: dict[str, Any]
) -> None:
    number, methods = SETTINGS.index(settings), ["medusa", "draft_model", "eagle3"]
    # Of nine settings each method has three, and each kind one or two, with different methods.
    taken = sized([methods[number % 3]], methods)
    # What is to be preempted has to grow.
    num_tokens = sized(30 if "num_gpu_blocks_override" in settings else 20, 60)
    for method in taken:
        llm = create(**settings, speculative_config=with_tree(method, tree))
        for kind in share(KINDS, number + number // 3, len(KINDS), settings):
            own = params(kind, num_tokens)
            expected = results(plain_answers(TINY, PROMPTS, own, **settings))
            assert results(llm.generate(PROMPTS, own)) == expected, (method, kind)
            assert accepted(llm) > 0
        if "num_gpu_blocks_override" in settings:
            assert llm.engine.stats()["num_preemptions"] > 0


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("method", ["medusa", "eagle3", "mtp", "draft_model"])
def test_a_tree_holds_longer_than_a_chain_of_its_depth(
    create: Create, plain_answers: Answers, chains: dict[str, float], method: str, tree: str
) -> None:
    """SPD-14: the mean accepted length is at least that of a chain as deep."""
    own = [
        SamplingParams(temperature=t, seed=1, max_tokens=sized(30, 100), ignore_eos=True)
        for t in (0.0, 0.0, 0.7, 0.7)
    ]
    expected = results(plain_answers(TINY, PROMPTS, own))

    def num_steps(config: dict[str, Any]) -> float:
        llm = create(speculative_config=config)
        for prompt, settings, answer in zip(PROMPTS, own, expected, strict=True):
            assert results(llm.generate([prompt], [settings])) == [answer]
        return float(llm.engine.stats()["num_steps"])

    if method not in chains:
        chain = {"method": method, "adaptive": False, **METHODS[method]}
        chains[method] = num_steps(chain | {"num_speculative_tokens": 4})
    assert num_steps(with_tree(method, tree)) <= chains[method]


def test_estimates_know_what_the_rows_of_a_tree_see(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree was counted as a chain of as many tokens."""
    trees: list[BatchTree] = []
    masked: list[int] = []

    def adding(step: ForwardBatch, block_size: int, own: Sequence[BatchTree]) -> None:
        trees.extend(own)
        add_trees(step, block_size, own)

    def counting(self: StepEstimate, plan: Any, output: StepOutput, seconds: float) -> None:
        masked.append(output.num_masked_pairs)

    monkeypatch.setattr("quire.runner.step.input_batch.add_trees", adding)
    monkeypatch.setattr(StepEstimate, "add", counting)
    llm = create(speculative_config=with_tree("medusa", "static"))
    llm.generate(PROMPTS, params("greedy", 20))
    sizes = [[len(path) for path in tree.paths] for tree in trees]
    expected = sum(sum(range(len(own) + 1)) - sum(own) for own in sizes)
    assert sum(masked) == expected > 0


def test_prefixes_that_a_tree_has_filled_are_found_and_right(create: Create) -> None:
    """KV that was moved is read by others, from the prefix cache."""
    llm, plain = create(speculative_config=with_tree("eagle3", "grown")), create()
    own = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
    first = llm.generate(PROMPTS[:1], own)[0]
    own = replace(own, max_tokens=sized(30, 80))
    story = PROMPTS[0] + first.outputs[0].text
    for end in ("", " Then they", "\nQuestion: Who"):
        found = llm.generate([story + end], own)
        assert found[0].num_cached_tokens > 64
        assert results(found) == results(plain.generate([story + end], own))


@pytest.mark.parametrize("window", [7, 24])
def test_windows(create: Create, tmp_path: Path, window: int) -> None:
    config = {**PRESETS["tiny-mistral"], "sliding_window": window}
    random_checkpoint(tmp_path / "target", config)
    method = {"method": "self", "quantization": "int8", "adaptive": False}
    prompts = [[5, 9, 3, 200, 31] * 9, [7, 7, 1]]
    own = [
        SamplingParams(temperature=0.9, seed=i, max_tokens=sized(40, 60), ignore_eos=True)
        for i in (1, 2)
    ]
    for settings in ({}, {"kv_cache_dtype": "bfloat16", "block_size": 8}):
        expected = create(tmp_path / "target", **settings).generate(prompts, own)
        for tree in TREES.values():
            llm = create(tmp_path / "target", **settings, speculative_config={**method, **tree})
            assert results(llm.generate(prompts, own)) == results(expected)
            assert accepted(llm) > 0.05


def test_rejection_and_grammars_go_with_chains(create: Create) -> None:
    """Rows whose draws depend on the tokens before get the proposals of a chain."""
    llm, plain = create(speculative_config=with_tree("eagle3", "grown")), create()
    grammar = StructuredOutputs(regex="[a-z ]{8,30}[.]")
    own = [
        replace(one, ignore_eos=False, structured_outputs=grammar) for one in params("sampled", 40)
    ]
    assert results(llm.generate(PROMPTS, own)) == results(plain.generate(PROMPTS, own))
    assert accepted(llm) > 0
    config = {**with_tree("eagle3", "grown"), "acceptance": "rejection"}
    llm = create(speculative_config=config)
    llm.generate(PROMPTS, params("sampled", 40))
    assert accepted(llm) > 0
