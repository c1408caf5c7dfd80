"""A model on several ranks: real processes, and the bits of one."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from benchmarks import lattice_requests
from benchmarks.equality import Condition, check_lattice, run_baseline
from quire import LLM, LoRARequest, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.core.engine_request import EngineRequest
from quire.core.errors import EngineDeadError
from quire.core.step import SchedulerOutput
from quire.engine.pipeline import PlansInFlight
from quire.models.config.config_reader import read_model_config
from quire.runner.step.sampling_state import SamplingState
from quire.store.hub import resolve_model
from tests.integration.conftest import FAMILIES, lattice, once
from tests.preforked import children
from tests.robustness.conftest import wait_for
from tests.sizes import sized

ADAPTERS = sorted(p.parent for p in (ASSETS / "quire-tiny-adapters").glob("*/adapter_config.json"))
SETTINGS: list[dict[str, Any]] = [
    {"kv_cache_dtype": "int8"},
    {"quantization": "int4"},
    {"kv_canary": "raise"},
    {"kv_offload_bytes": 1 << 24},
    {"adapters": ADAPTERS},
]
SIZES = [(2, 1), (1, 2), (2, 2)]
#: Each with both divisions at once, and in turn with one or the other alone.
DIVIDED = [
    (settings, sizes)
    for number, settings in enumerate(SETTINGS)
    for sizes in sized([SIZES[number % 2], SIZES[2]], SIZES)
]
METHODS = [
    {"method": "ngram"},
    {"method": "medusa"},
    {"method": "eagle3"},
    {"method": "draft_model", "model": "quire-tiny-draft"},
    {"method": "self", "quantization": "int4"},
]


def failures(
    folder: Path, conditions: list[Condition], varied: dict[str, Any], **settings: Any
) -> dict[str, tuple[str, ...]]:
    """Return what is other than on one rank by condition."""
    asked = folder, lattice_requests.NUM_OUTPUT_TOKENS, settings
    baseline = once(lambda: run_baseline(folder, **settings), "baseline", *asked)
    outcomes = check_lattice(folder, conditions, varied=varied, baseline=baseline, **settings)
    return {o.condition.name: o.failures for o in outcomes if o.failures}


@pytest.mark.parametrize("size", [2, 3])
def test_quire_tiny_on_ranks(size: int) -> None:
    conditions = [Condition(), *lattice(0)] if size == 2 else [Condition(batched=True)]
    varied = {"tensor_parallel_size": size}
    assert failures(resolve_model("quire-tiny"), conditions, varied) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_on_two_ranks(checkpoint: Callable[..., Path], family: str) -> None:
    conditions = [Condition(batched=True, chunked=True)]
    varied = {"tensor_parallel_size": 2}
    assert failures(checkpoint(family), conditions, varied) == {}


@pytest.mark.parametrize("sizes", [(1, 2), (1, 4), (2, 2)], ids=str)
def test_quire_tiny_in_stages(sizes: tuple[int, int]) -> None:
    conditions = [Condition(), *lattice(1)] if sizes == (1, 2) else [Condition(batched=True)]
    varied = dict(zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes, strict=True))
    assert failures(resolve_model("quire-tiny"), conditions, varied) == {}


@pytest.mark.parametrize(("settings", "sizes"), DIVIDED, ids=str)
def test_what_an_engine_can_do_it_can_on_ranks(
    settings: dict[str, Any], sizes: tuple[int, int]
) -> None:
    warm = sized(DIVIDED.index((settings, sizes)) % 4 in (1, 2), True)  # each setting once
    conditions = [Condition(batched=True, chunked=True, warm=warm)]
    varied = dict(zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes, strict=True))
    assert failures(resolve_model("quire-tiny"), conditions, varied, **settings) == {}


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("quire-tiny", {"kv_cache_dtype": "int8"}),
        ("quire-tiny", {"adapters": ADAPTERS}),
        ("tiny-mistral", {}),
    ],
    ids=str,
)
def test_parts_of_long_prompts_in_stages(
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    model: str,
    settings: dict[str, Any],
) -> None:
    """Parts of one prompt are at several stages at once; one family has windows."""
    if model == "tiny-mistral":
        request.getfixturevalue("long_answers")
    most = []
    planned = PlansInFlight.planned

    def count(plans: PlansInFlight, plan: SchedulerOutput, *rest: Any) -> None:
        planned(plans, plan, *rest)
        most.append(max(plans._num_plans[row.request_id] for row in plan.scheduled))

    monkeypatch.setattr(PlansInFlight, "planned", count)
    folder = resolve_model(model) if model == "quire-tiny" else checkpoint(model)
    conditions = [
        Condition(chunked=True, warm=True),
        Condition(batched=True, chunked=True, preempted=True),
    ]
    varied = {"pipeline_parallel_size": 2}
    assert failures(folder, conditions, varied, **settings) == {}
    assert max(most) == 2


def test_a_long_prompt_that_cannot_be_taken_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second part is on the way by then, with blocks for a request that no rank knows."""
    refused, prompt = 77, list(range(5, 69))
    set_sampling = SamplingState.set

    def fail(state: SamplingState, row: int, params: SamplingParams, seed: int) -> None:
        if seed == refused:
            raise RuntimeError("no memory for this one")
        set_sampling(state, row, params, seed)

    monkeypatch.setattr(SamplingState, "set", fail)
    reasons, texts = {}, []
    with LLM(threads=1, pipeline_parallel_size=2, max_num_batched_tokens=16, block_size=8) as llm:
        engine = llm.engine.engine
        for name, seed in (("bad", refused), ("good", 1)):
            engine.add_request(
                EngineRequest(
                    name,
                    prompt,
                    SamplingParams(temperature=0, max_tokens=4, seed=seed, ignore_eos=True),
                )
            )
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.request_id == "good":
                    texts += output.result.token_ids
                if output.finish_reason:
                    reasons[output.request_id] = output.finish_reason
        alone = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert reasons == {"bad": "error", "good": "length"}
    assert texts == list(alone[0].outputs[0].token_ids)


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        (method, sizes)
        for number, method in enumerate(METHODS)
        for sizes in sized([(2, 1), (2, 2)][number % 2 :], [(2, 1), (2, 2)])
    ],
    ids=str,
)
def test_drafts_are_as_good_on_ranks(method: dict[str, str], sizes: tuple[int, int]) -> None:
    params = SamplingParams(temperature=0, max_tokens=sized(24, 32), logprobs=1)

    def run(tensor: int, pipeline: int) -> Any:
        with LLM(
            speculative_config={**method, "adaptive": False},
            threads=1,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
        ) as llm:
            answers = llm.generate(["Hello, who are you?", "Count from one to ten:"], params)
            name = method["method"]
            accepted = llm.engine.stats()[f'spec_decode_num_accepted_tokens{{method="{name}"}}']
        said = [(a.outputs[0].token_ids, a.outputs[0].logprobs) for a in answers]
        return said, accepted

    expected = once(lambda: run(1, 1), "drafts", method)
    assert expected == run(*sizes)
    assert expected[1] > 0


def test_sums_of_ranks_give_the_same_tokens() -> None:
    params = SamplingParams(temperature=0, max_tokens=32, prompt_logprobs=0)
    found = []
    for settings in ({}, {"tensor_parallel_size": 2, "exact_tensor_parallel": False}):
        with LLM(dtype="float32", threads=1, **settings) as llm:
            (answer,) = llm.generate("What is the capital of France?", params)
        values = [next(iter(p.values())).logprob for p in answer.prompt_logprobs[1:]]
        found.append((answer.outputs[0].token_ids, values))
    (ids, values), (others, sums) = found
    assert ids == others
    assert sums == pytest.approx(values, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=str)
def test_an_adapter_of_the_head(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """Of prompts' log-probabilities too, which the last stage is asked for when it has gone on."""
    config = read_model_config(resolve_model("quire-tiny"))
    rng, name = np.random.default_rng(3), "base_model.model.lm_head.lora_"
    shapes = {"A": (2, config.hidden_size), "B": (config.vocab_size, 2)}
    tensors = {f"{name}{k}.weight": rng.normal(0, 0.3, shape) for k, shape in shapes.items()}
    save_file({k: v.astype(np.float32) for k, v in tensors.items()},
              tmp_path / "adapter_model.safetensors")  # fmt: skip
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["lm_head"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    adapters = [LoRARequest("head", 1, str(tmp_path)), None]
    params, found = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=1), []
    for tensor, pipeline in ((1, 1), sizes):
        with LLM(
            threads=1,
            enable_lora=True,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
        ) as llm:
            prompts = ["Hello, who are you?"] * 2
            answers = llm.generate(prompts, params, False, adapters)
        found.append([(a.outputs[0].token_ids, a.prompt_logprobs) for a in answers])
    assert found[0] == found[1]
    assert found[0][0][1] != found[0][1][1]


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=str)
def test_vectors_of_prompts(sizes: tuple[int, int]) -> None:
    found = []
    for tensor, pipeline in ((1, 1), sizes):
        with LLM(threads=1, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline) as llm:
            found.append([one.outputs.embedding for one in llm.embed(["Hello", "A fox ran."])])
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [2, 4])
def test_whole_experts_on_ranks(checkpoint: Callable[..., Path], size: int) -> None:
    conditions = [Condition(batched=True, chunked=True)]
    varied = {"tensor_parallel_size": size, "enable_expert_parallel": True}
    assert failures(checkpoint("tiny-mixtral"), conditions, varied) == {}


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=str)
def test_weights_that_fit_in_several_ranks_alone(sizes: tuple[int, int]) -> None:
    """Rank 0 refused a model that was more than its own share of the memory."""
    tensor, pipeline = sizes
    settings: dict[str, Any] = {
        "threads": 1,
        "max_model_len": 64,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 2,
        "memory": 15 << 20,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
    }
    with LLM(**settings) as llm:
        assert llm.generate("Hello", SamplingParams(max_tokens=3))[0].outputs[0].token_ids


def test_experts_that_move_between_steps(
    checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Each rank decides alone; two that decide otherwise would wait for each other, or mix rows."""
    caplog.set_level(logging.DEBUG, "quire.layers.parallel.rank_experts")
    conditions = [Condition(batched=True, chunked=True)]
    varied = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    moving = {"enable_eplb": True, "eplb_step_interval": 3, "num_redundant_experts": 2}
    assert failures(checkpoint("tiny-mixtral"), conditions, varied | moving) == {}
    assert "experts moved" in caplog.text


def test_a_killed_rank_is_named_and_none_is_left(quire_log: list[logging.LogRecord]) -> None:
    before = set(children(psutil.Process()))
    with LLM(tensor_parallel_size=2, threads=1) as llm:
        assert llm.generate("Hello", SamplingParams(max_tokens=4))
        ranks = [p for p in children(psutil.Process()) if p not in before]
        assert len(ranks) == 1
        os.kill(ranks[0].pid, signal.SIGKILL)
        wait_for(lambda: any("[rank 1] " in record.getMessage() for record in quire_log))
        with pytest.raises(EngineDeadError, match=rf"rank 1.*{ranks[0].pid}"):
            llm.generate("Hello", SamplingParams(max_tokens=4))
    assert not [p for p in ranks if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.usefixtures("ranks_have_torch")
def test_stages_on_different_backends() -> None:
    """The tokens of one backend, and log-probabilities as close as those of the other one."""
    pytest.importorskip("torch")
    params = SamplingParams(max_tokens=12, temperature=0, logprobs=0)
    settings = {"dtype": "float32", "threads": 1}
    found = []
    for stages in ({}, {"stage_devices": "cpu,reference"}, {"stage_devices": "reference,cpu"}):
        divided = {"pipeline_parallel_size": 2, "stage_layers": "4,2"} if stages else {}
        with LLM(**settings, **divided, **stages) as llm:
            (output,) = llm.generate("Once upon a time", params)
        sequence = output.outputs[0]
        found.append((sequence.token_ids, sequence.cumulative_logprob))
    for token_ids, logprob in found[1:]:
        assert token_ids == found[0][0]
        assert logprob == pytest.approx(found[0][1], abs=1e-3)
