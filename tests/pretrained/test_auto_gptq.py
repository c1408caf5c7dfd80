"""``AutoGPTQForCausalLM``: from floats to a saved checkpoint and back, option by option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.pretrained import AutoGPTQForCausalLM, BaseQuantizeConfig
from tests.pretrained.conftest import Config
from tests.quantizing.stored_values import files_of

USUAL = {"bits": 4, "group_size": 32}


@pytest.fixture(scope="module")
def examples() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    rows = random.integers(3, 200, (8, 40)).tolist()
    return [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]


@pytest.fixture(scope="module")
def saved(
    checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    small: dict[str, Any],
    examples: list[dict[str, Any]],
) -> Callable[..., Path]:
    """Return a function that quantizes and saves a small model, once for each options."""
    made: dict[str, Path] = {}

    def save(given: list[Any] | None = None, **options: Any) -> Path:
        key = repr((given, options))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("gptq") / "out"
            config = BaseQuantizeConfig(**USUAL | options)
            with AutoGPTQForCausalLM.from_pretrained(checkpoint(), config, **small) as model:
                model.quantize(given or examples)
                model.save_quantized(made[key])
        return made[key]

    return save


def test_floats_are_quantized_saved_and_loaded(
    checkpoint: Callable[..., Path],
    small: dict[str, Any],
    examples: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    config, row = BaseQuantizeConfig(**USUAL), [5, 6, 7]
    settings = {"torch_dtype": "float32", **small}
    with AutoGPTQForCausalLM.from_pretrained(checkpoint(), config, **settings) as model:
        assert not model.quantized
        model.quantize(examples, batch_size=1)
        assert model.quantized
        found = model.generate(input_ids=[row], max_new_tokens=6, eos_token_id=[])
        model.save_quantized(tmp_path / "out", use_safetensors=True)
        folder = model._folder
    assert not folder.exists()
    path, device = tmp_path / "out", {"device": "cpu"}
    with AutoGPTQForCausalLM.from_quantized(path, **device, **settings) as again:
        assert again.generate(input_ids=[row], max_new_tokens=6, eos_token_id=[]) == found
        with pytest.raises(ConfigError, match="must be of floats; got one that is quantized"):
            again.quantize(examples)
    with LLM(str(path), dtype="float32", **small) as llm:
        params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
        assert llm.generate([row], params)[0].outputs[0].token_ids == found[0][3:]


@pytest.mark.parametrize(
    ("options", "entries"),
    [
        ({}, {"bits": 4, "group_size": 32, "sym": True, "desc_act": True}),
        ({}, {"damp_percent": 0.01, "true_sequential": True}),
        ({"bits": 3}, {"bits": 3}),
        ({"group_size": -1}, {"group_size": -1}),
        ({"damp_percent": 0.1}, {"damp_percent": 0.1}),
        ({"desc_act": False}, {"desc_act": False}),
        ({"true_sequential": False}, {"true_sequential": False}),
        ({"sym": False, "checkpoint_format": "gptq_v2"}, {"checkpoint_format": "gptq_v2"}),
    ],
)
def test_settings_are_written(
    saved: Callable[..., Path], stored: Config, options: dict[str, Any], entries: dict[str, Any]
) -> None:
    out = saved(**options)
    assert entries.items() <= stored(out).items()
    plain = files_of(saved())["model.safetensors"]
    assert (files_of(out)["model.safetensors"] == plain) is not bool(options)


def test_examples_are_what_is_computed(
    saved: Callable[..., Path], examples: list[dict[str, Any]]
) -> None:
    plain = files_of(saved())["model.safetensors"]
    rows = [example["input_ids"] for example in examples]
    filled = [
        {
            "input_ids": np.array([[*row, 0, 0]]),
            "attention_mask": np.array([[1] * len(row) + [0, 0]]),
        }
        for row in rows
    ]
    for same in (rows, filled):
        assert files_of(saved(same))["model.safetensors"] == plain
    assert files_of(saved(rows[:4]))["model.safetensors"] != plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 5}, "--bits must be one of"),
        ({"group_size": 48}, "--group-size must be 16"),
        ({"damp_percent": 2.0}, "--damping must be over 0"),
        ({"static_groups": True}, "static_groups must be False"),
        ({"quant_method": "awq"}, "quant_method must be gptq"),
        ({"sym": False}, "checkpoint_format must be gptq_v2 for sym=False"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format must be gptq for sym=True"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BaseQuantizeConfig(**options)


def test_names_of_models_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    config = BaseQuantizeConfig(model_name_or_path="a", model_file_base_name="b")
    assert config.to_dict()["model_name_or_path"] == "a"
    assert ["changes nothing" in line for line in caplog.messages] == [True, True]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "examples must be given"),
        ([[1]], "must have 2 token ids or more"),
        (["text"], "must have 2 token ids or more"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 0]}], "must have 2 token ids"),
        ([[1, 2, 1 << 40]], "each of 32 bits"),
        ([[1, 2, 99999]], "token ids must be of the vocabulary"),
        ([[1, 2, -1]], "token ids must be of the vocabulary"),
    ],
)
def test_examples_that_cannot_be_are_refused(
    checkpoint: Callable[..., Path], examples: list[Any], message: str
) -> None:
    model = AutoGPTQForCausalLM.from_pretrained(checkpoint(), BaseQuantizeConfig(**USUAL))
    with pytest.raises(ConfigError, match=message):
        model.quantize(examples)


def test_a_checkpoint_of_another_kind_is_refused(
    checkpoint: Callable[..., Path], saved: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match="must be quantized by gptq; got none"):
        AutoGPTQForCausalLM.from_quantized(checkpoint())
    with pytest.raises(ConfigError, match="must be a folder of floats"):
        AutoGPTQForCausalLM.from_pretrained(saved(), BaseQuantizeConfig())
