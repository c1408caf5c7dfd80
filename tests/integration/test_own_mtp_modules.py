"""MTP modules in a target's own checkpoint: left out or drafted with, the same answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, WeightMismatchError
from quire.kernels.batch.token_table import IntArray
from quire.speculative.drafters.recurrent import RecurrentProposer
from tests.draft_heads import Tensors, normal, write_head, write_target

Create = Callable[..., LLM]
Write = Callable[..., Path]

D, WIDE, LAYERS = 64, 128, 3
Q, KV, HEAD = 64, 32, 16
CASES = [("deepseek", "tiny-llama"), ("deepseek", "tiny-qwen2"), ("qwen", "tiny-qwen3")]
PROMPTS = ["Once upon a time", "The dog ran to the park and", "List three fruits."]
PARAMS = [
    SamplingParams(max_tokens=24, seed=i, temperature=t, ignore_eos=True, logprobs=2)
    for i, t in enumerate((0.0, 0.8, 1.0))
]


def layer_tensors(prefix: str, preset: str, rng: np.random.Generator) -> Tensors:
    """Return a layer of the target's kind."""
    shapes = {
        "self_attn.q_proj.weight": (Q, D),
        "self_attn.k_proj.weight": (KV, D),
        "self_attn.v_proj.weight": (KV, D),
        "self_attn.o_proj.weight": (D, Q),
        "mlp.gate_proj.weight": (WIDE, D),
        "mlp.up_proj.weight": (WIDE, D),
        "mlp.down_proj.weight": (D, WIDE),
    }
    tensors = {name: normal(rng, *shape) for name, shape in shapes.items()}
    norms = {"input_layernorm": D, "post_attention_layernorm": D}
    if preset == "tiny-qwen2":
        for name, rows in (("q", Q), ("k", KV), ("v", KV)):
            tensors[f"self_attn.{name}_proj.bias"] = normal(rng, rows)
    if preset == "tiny-qwen3":
        norms |= {"self_attn.q_norm": HEAD, "self_attn.k_norm": HEAD}
    tensors |= {f"{name}.weight": 1 + normal(rng, size) for name, size in norms.items()}
    return {prefix + name: tensor for name, tensor in tensors.items()}


def module_tensors(layout: str, preset: str, number: int = 0) -> Tensors:
    """Return a module for the token ``number`` after the next."""
    rng = np.random.default_rng(8 + number)
    if layout == "qwen":
        tensors = layer_tensors(f"mtp.layers.{number}.", preset, rng)
        mix, norms = "mtp.fc", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        names = [f"mtp.{norm}" for norm in norms]
    else:
        layer = f"model.layers.{LAYERS + number}."
        tensors = layer_tensors(layer, preset, rng)
        mix = f"{layer}eh_proj"
        names = [f"{layer}{norm}" for norm in ("enorm", "hnorm", "shared_head.norm")]
        tensors[f"{layer}embed_tokens.weight"] = normal(rng, 320, D)
        tensors[f"{layer}shared_head.head.weight"] = normal(rng, 320, D)
    tensors[f"{mix}.weight"] = normal(rng, D, 2 * D)
    return tensors | {f"{name}.weight": 1 + normal(rng, D) for name in names}


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list that fills with proposals as they are made."""
    made: list[list[int]] = []
    propose = RecurrentProposer.propose

    def record(self: RecurrentProposer, rows: IntArray, most: IntArray, draw: Any) -> IntArray:
        counts = propose(self, rows, most, draw)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            first = int(self._table.num_tokens[row])
            made.append(self._table.token_ids[row, first : first + count].tolist())
        return counts

    monkeypatch.setattr(RecurrentProposer, "propose", record)
    return made


def answers(llm: LLM) -> list[Any]:
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS)]
    return [(output.token_ids, output.text, output.logprobs) for output in outputs]


@pytest.mark.parametrize(("layout", "preset"), CASES)
def test_a_module_drafts_as_from_a_folder(
    create_llm: Create,
    checkpoint: Write,
    proposed: list[list[int]],
    layout: str,
    preset: str,
    tmp_path: Path,
    device: str,
) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    plain, tensors = checkpoint(preset), module_tensors(layout, preset)
    own = write_target(plain, tmp_path / "target", tensors)
    config = json.loads((plain / "config.json").read_text("utf-8"))
    head = write_head(tmp_path / "head", tensors, config)
    expected = answers(create_llm(plain))
    assert answers(create_llm(own)) == expected
    assert not proposed
    found = []
    for target, model in ((own, {}), (plain, {"model": str(head)}), (own, {"model": str(head)})):
        asked = {"method": "mtp", "adaptive": False, "num_speculative_tokens": 3, **model}
        assert answers(create_llm(target, speculative_config=asked)) == expected
        found.append(proposed.copy())
        proposed.clear()
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0])) > 60


@pytest.mark.parametrize(("layout", "preset"), CASES[1:])
def test_what_is_there_is_said(
    create_llm: Create,
    checkpoint: Write,
    layout: str,
    preset: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In one line, for one module or two; a second one is not drafted with."""
    tensors = module_tensors(layout, preset) | module_tensors(layout, preset, 1)
    own = write_target(checkpoint(preset), tmp_path / "target", tensors)
    with caplog.at_level(logging.INFO):
        create_llm(own, verbose=True)
    (line,) = [message for message in caplog.messages if "further tokens" in message]
    assert f"{len(tensors)} tensors" in line
    assert '--speculative-config \'{"method": "mtp"}\'' in line
    assert not any("not needed" in message for message in caplog.messages)
    llm = create_llm(own, speculative_config={"method": "mtp", "adaptive": False})
    llm.generate(PROMPTS[0], PARAMS[0])
    assert llm.engine.stats()['spec_decode_num_drafts{method="mtp"}'] != 0


def test_other_tensors_are_still_surplus(
    create_llm: Create, checkpoint: Write, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    layer = layer_tensors(f"model.layers.{LAYERS}.", "tiny-llama", rng)
    own = write_target(checkpoint(), tmp_path / "layer", layer)
    with pytest.raises(WeightMismatchError, match=r"surplus model\.layers\.3\.input_layernorm"):
        create_llm(own, verbose=True)
    with pytest.raises(ConfigError, match=r"as there is no module in "):
        create_llm(speculative_config={"method": "mtp"})


def test_a_module_of_another_shape_is_refused(
    create_llm: Create, checkpoint: Write, tmp_path: Path
) -> None:
    """The model without it loads; what is missing is named."""
    tensors = module_tensors("qwen", "tiny-qwen3")
    del tensors["mtp.layers.0.mlp.up_proj.weight"], tensors["mtp.layers.0.self_attn.q_norm.weight"]
    own = write_target(checkpoint("tiny-qwen3"), tmp_path / "target", tensors)
    create_llm(own)
    with pytest.raises(ConfigError, match=r"missing mtp\.layers\.0\.mlp\.up_proj") as caught:
        create_llm(own, speculative_config={"method": "mtp"})
    assert "missing mtp.layers.0.self_attn.q_norm" in str(caught.value)
