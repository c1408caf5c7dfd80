"""quire-tiny's EAGLE-3 head as ``speculators`` lays it out, with a draft vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.core.errors import ConfigError

TINY = ASSETS / "quire-tiny"
HEAD = ASSETS / "quire-tiny-heads" / "eagle3"
NUM_COMMON = 1500
OF_HEAD = ("architectures", "eagle_aux_hidden_state_layer_ids", "norm_before_residual")
PROMPTS = ["Once upon a time, there was a little girl who", "The dog ran to the park and"]

Create = Callable[..., LLM]


def write(folder: Path, **further: Any) -> Path:
    folder.mkdir()
    own = json.loads((HEAD / "config.json").read_text("utf-8"))
    layer = {key: value for key, value in own.items() if key not in OF_HEAD}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": str(TINY)}},
        "transformer_layer_config": {**layer, "model_type": "llama"},
        "draft_vocab_size": NUM_COMMON,
        **{key: own[key] for key in OF_HEAD[1:] if key in own},
        **further,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    target = load_file(TINY / "model.safetensors")
    embedding = target["model.embed_tokens.weight"]
    ids = torch.randperm(len(embedding), generator=torch.Generator().manual_seed(1))
    ids = ids[:NUM_COMMON].sort().values
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(HEAD / "model.safetensors").items()
    }
    known = torch.zeros(len(embedding), dtype=torch.bool)
    known[ids] = True
    tensors |= {
        "lm_head.weight": target.get("lm_head.weight", embedding)[ids].contiguous(),
        "d2t": ids - torch.arange(NUM_COMMON),
        "t2d": known,
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_it_drafts_among_its_own_tokens(create_llm: Create, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
    held, answers = [], []
    for head in (HEAD, write(tmp_path / "head")):
        config = {"model": str(head), "adaptive": False}
        llm = create_llm(TINY, speculative_config=config)
        answers.append([o.outputs[0].token_ids for o in llm.generate(PROMPTS, params)])
        held.append(llm.engine.stats()['spec_decode_num_accepted_tokens{method="eagle3"}'])
    assert answers[0] == answers[1]
    assert held[0] > held[1] > 0.25 * held[0]


@pytest.mark.parametrize(
    ("name", "missing"),
    [("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")],
)
def test_norms_without_their_weights_are_refused(
    create_llm: Create, tmp_path: Path, name: str, missing: str
) -> None:
    head = write(tmp_path / "head", **{name: True})
    with pytest.raises(ConfigError, match=f"missing {missing}"):
        create_llm(TINY, speculative_config={"method": "eagle3", "model": str(head)})


def test_norms_that_exclude_each_other_are_refused(create_llm: Create, tmp_path: Path) -> None:
    head = write(tmp_path / "head", norm_before_fc=True, fc_norm=True)
    with pytest.raises(ConfigError, match="norm_before_fc and fc_norm must not both be true"):
        create_llm(TINY, speculative_config={"method": "eagle3", "model": str(head)})


@pytest.mark.parametrize("option", [{"speculators_model_type": "peagle"}, {"pard_token": 3}])
def test_a_mask_that_is_missing_is_refused(
    create_llm: Create, tmp_path: Path, option: dict[str, Any]
) -> None:
    head = write(tmp_path / "head", **option)
    with pytest.raises(ConfigError, match="must have mask_hidden"):
        create_llm(TINY, speculative_config={"method": "eagle3", "model": str(head)})
