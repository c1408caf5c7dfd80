"""Heads that draft several tokens at once: the same answers with them, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.core.errors import ConfigError
from quire.core.outputs import RequestOutput
from quire.speculative.drafters.parallel import ParallelProposer
from tests.draft_heads import normal
from tests.integration.conftest import fewer, share
from tests.integration.test_speculation_heads import (
    KINDS,
    PROMPTS,
    SETTINGS,
    count,
    params,
    results,
)
from tests.integration.test_speculation_trees import TREES
from tests.sizes import sized

TINY = ASSETS / "quire-tiny"
HEAD = ASSETS / "quire-tiny-heads" / "eagle3"
D = 256

Create = Callable[..., LLM]
Answers = Callable[..., list[RequestOutput]]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return quire-tiny's EAGLE-3 head with a second layer and a mask, both of random weights."""
    folder: Path = tmp_path_factory.mktemp("parallel")
    rng = np.random.default_rng(1)
    file = SafetensorsFile(HEAD / "model.safetensors")
    tensors = {name: file.tensor(name).float32() for name in file.entries}
    second = {
        name.replace("midlayer.", "layers.1."): 0.1 * normal(rng, *tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith("midlayer.") and "hidden_norm" not in name
    }
    for name in ("q_proj", "k_proj", "v_proj"):
        second[f"layers.1.self_attn.{name}.weight"] = second[f"layers.1.self_attn.{name}.weight"][
            :, :D
        ].copy()
    mask = {"mask_hidden": normal(rng, 1, tensors["fc.weight"].shape[1])}
    save_file(tensors | second | mask, folder / "model.safetensors")
    config = json.loads((HEAD / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"ptd_token_id": 5}), "utf-8")
    return folder


@pytest.fixture
def create(create_llm: Create, device: str) -> Create:
    """Return a maker of quire-tiny, by the native kernels: torch does not promise equal bits."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    return lambda **settings: create_llm(TINY, **settings)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with a one for each forward of a head that drafts at once."""
    made: list[int] = []
    compute = ParallelProposer._compute
    monkeypatch.setattr(ParallelProposer, "_compute", lambda *own: made.append(1) or compute(*own))
    return made


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_are_the_same(
    create: Create,
    plain_answers: Answers,
    head: Path,
    forwards: list[int],
    settings: dict[str, Any],
) -> None:
    config = {"method": "eagle3", "model": str(head), "parallel_drafting": True, "adaptive": False}
    chain = create(**settings, speculative_config=config)
    tree = create(**settings, speculative_config=config | TREES["grown"])
    tokens = sized(30 if "num_gpu_blocks_override" in settings else 20, 40)
    for number, llm in enumerate((chain, tree), SETTINGS.index(settings)):
        for kind in share(KINDS, number, len(KINDS), settings):
            own = params(kind, fewer(tokens, settings))
            expected = results(plain_answers(TINY, PROMPTS, own, **settings))
            proposed, rounds = count(llm, "draft_tokens"), len(forwards)
            assert results(llm.generate(PROMPTS, own)) == expected
            assert count(llm, "draft_tokens") >= proposed + fewer(sized(50, 100), settings)
            assert len(forwards) > rounds
    assert count(chain, "accepted_tokens") > 0 < count(tree, "accepted_tokens")
    if "num_gpu_blocks_override" in settings:
        assert chain.engine.stats()["num_preemptions"] > 0


def test_a_set_number_is_drafted_in_one_forward(
    create: Create, head: Path, forwards: list[int]
) -> None:
    config = {"model": str(head), "adaptive": False, "num_speculative_tokens": 7}
    llm = create(speculative_config=config)
    own = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    llm.generate(PROMPTS[:1], own)
    assert count(llm, "drafts") == len(forwards)
    assert count(llm, "draft_tokens") > 6 * len(forwards)


def test_a_warm_prefix_is_drafted_from(create: Create, head: Path) -> None:
    llm, plain = create(speculative_config={"model": str(head), "adaptive": False}), create()
    own = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    story = "Once upon a time there was a fox who lived in a wood. " * 12
    held = []
    for _ in range(2):
        before = count(llm, "accepted_tokens")
        found = llm.generate([story], own)
        held.append(count(llm, "accepted_tokens") - before)
        assert results(found) == results(plain.generate([story], own))
    assert found[0].num_cached_tokens > 64
    assert held[1] > 0.8 * held[0] > 0


def test_the_head_may_draft_one_after_the_other(
    create: Create, head: Path, forwards: list[int]
) -> None:
    config = {"method": "eagle3", "model": str(head), "parallel_drafting": False}
    llm = create(speculative_config={**config, "adaptive": False})
    expected = results(create().generate(PROMPTS, params("sampled")))
    assert results(llm.generate(PROMPTS, params("sampled"))) == expected
    assert count(llm, "accepted_tokens") > 0 == len(forwards)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "eagle3"}, "must be left out: the head in .* one token after the other"),
        ({"method": "mtp"}, "must be left out of method mtp"),
        ({"method": "eagle3", "parallel_drafting": 1}, "must be true or false"),
    ],
    ids=str,
)
def test_heads_that_cannot_are_refused(
    create_llm: Create, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f'"parallel_drafting" {message}'):
        create_llm(TINY, speculative_config={"parallel_drafting": True, **config})


def test_memory_of_both_layers_is_counted(create: Create, head: Path) -> None:
    executors = [
        create(max_model_len=512, speculative_config=config).engine.engine.executor
        for config in ({"method": "eagle3"}, {"model": str(head)})
    ]
    per_token = [
        executor.stats()['memory_bytes{pool="kv_cache"}']
        / executor.num_blocks
        / executor.kv_cache_spec.block_size
        for executor in executors
    ]
    assert per_token[1] - per_token[0] == 2 * 2 * 32 * 2  # K and V of 2 heads of 32 in 16 bits
