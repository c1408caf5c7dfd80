"""``AutoAWQForCausalLM``: from floats to a saved checkpoint and back, option by option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.checkpoint import INDEX
from quire.core.errors import ConfigError
from quire.pretrained import AutoAWQForCausalLM, AutoModelForCausalLM
from tests.pretrained.conftest import Config
from tests.quantizing.stored_values import files_of, quantized_names, values_of

LITTLE = {"max_calib_samples": 8, "max_calib_seq_len": 64}
CONFIG = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}


@pytest.fixture(scope="module")
def saved(
    checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, small: dict[str, Any]
) -> Callable[..., Path]:
    """Return a function that quantizes and saves a small model, once for each options."""
    made: dict[str, Path] = {}

    def save(config: dict[str, Any] | None = None, **options: Any) -> Path:
        key = repr((config, options))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("awq") / "out"
            with AutoAWQForCausalLM.from_pretrained(checkpoint(), **small) as model:
                model.quantize(None, quant_config=CONFIG | (config or {}), **LITTLE | options)
                model.save_quantized(made[key])
        return made[key]

    return save


def test_floats_are_quantized_saved_and_loaded(
    checkpoint: Callable[..., Path],
    small: dict[str, Any],
    texts: list[str],
    tmp_path: Path,
    stored: Config,
) -> None:
    row = [5, 6, 7]
    with AutoAWQForCausalLM.from_pretrained(checkpoint(), dtype="float32", **small) as model:
        before = model.generate([row], max_new_tokens=6, eos_token_id=[])
        assert not model.is_quantized
        with pytest.raises(ConfigError, match="the model must be quantized; got floats"):
            model.save_quantized(tmp_path / "early")
        model.quantize(None, quant_config=CONFIG, calib_data=texts, **LITTLE)
        assert model.is_quantized and model.config["quantization_config"]["quant_method"] == "awq"
        folder = model._folder
        found = model.generate([row], max_new_tokens=6, eos_token_id=[])
        assert before[0][:3] == found[0][:3] == row
        with pytest.raises(ConfigError, match="must be of floats; got one that is quantized"):
            model.quantize(None, quant_config=CONFIG)
        model.save_quantized(tmp_path / "out")
    assert not folder.exists()
    wanted = {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    assert wanted.items() <= stored(tmp_path / "out").items()
    with AutoAWQForCausalLM.from_quantized(tmp_path / "out", dtype="float32", **small) as again:
        assert again.generate([row], max_new_tokens=6, eos_token_id=[]) == found
    with LLM(str(tmp_path / "out"), dtype="float32", **small) as llm:
        params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
        assert llm.generate([row], params)[0].outputs[0].token_ids == found[0][3:]


@pytest.mark.parametrize(
    ("config", "entries"),
    [
        ({"q_group_size": 64}, {"group_size": 64}),
        ({"zero_point": False}, {"zero_point": False}),
    ],
)
def test_settings_are_written(
    saved: Callable[..., Path], stored: Config, config: dict[str, Any], entries: dict[str, Any]
) -> None:
    assert entries.items() <= stored(saved(config)).items()


def test_modules_that_are_not_converted(saved: Callable[..., Path], stored: Config) -> None:
    out = saved({"modules_to_not_convert": ["down_proj"]})
    assert not any("down_proj" in name for name in quantized_names(out))
    assert len(stored(out)["modules_to_not_convert"]) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"duo_scaling": False},
        {"apply_clip": False},
        {"max_calib_samples": 2},
        {"max_calib_seq_len": 32},
        {"calib_data": ["Only this text, again and again. " * 40]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_change_the_weights(saved: Callable[..., Path], options: dict[str, Any]) -> None:
    plain, other = saved(), saved(**options)
    assert files_of(plain)["model.safetensors"] != files_of(other)["model.safetensors"]


def test_shards_are_as_large_as_asked(
    checkpoint: Callable[..., Path],
    small: dict[str, Any],
    saved: Callable[..., Path],
    tmp_path: Path,
) -> None:
    source = saved(max_calib_samples=8, max_calib_seq_len=64)
    with AutoAWQForCausalLM.from_quantized(source, **small) as model:
        model.save_quantized(tmp_path, shard_size="20kB")
        with pytest.raises(ConfigError, match="shard_size must be bytes, as 5GB; got 'big'"):
            model.save_quantized(tmp_path / "other", shard_size="big")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1 and (tmp_path / INDEX).is_file()
    whole, parts = values_of(source), values_of(tmp_path)
    assert whole.keys() == parts.keys()
    assert all((whole[name] == parts[name]).all() for name in whole)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"w_bit": 3}, {}, "w_bit must be 4; got 3"),
        ({"version": "GEMV"}, {}, "version must be GEMM"),
        ({"q_group_size": 20}, {}, "--group-size must be 16"),
        ({"bits": 4}, {}, "got bits"),
        ({}, {"calib_data": "pileval"}, "nothing is fetched; got 'pileval'"),
        ({}, {"split": "test"}, "split is of data sets that are fetched"),
        ({}, {"export_compatible": True}, "export_compatible is not done"),
        ({}, {"quantizer_cls": object}, "quantizer_cls is code"),
        ({"modules_to_not_convert": ["h."]}, {}, "a name to skip must fit a matrix"),
    ],
)
def test_what_cannot_be_is_refused(
    checkpoint: Callable[..., Path], config: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    model = AutoAWQForCausalLM.from_pretrained(checkpoint())
    with pytest.raises(ConfigError, match=message):
        model.quantize(None, quant_config=CONFIG | config, **options)
    assert not model.is_quantized


def test_a_checkpoint_of_another_kind_is_refused(
    checkpoint: Callable[..., Path], saved: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match="must be quantized by awq; got none"):
        AutoAWQForCausalLM.from_quantized(checkpoint())
    with pytest.raises(ConfigError, match="must be a folder of floats"):
        AutoAWQForCausalLM.from_pretrained(saved())


def test_the_context_may_be_shorter(saved: Callable[..., Path], small: dict[str, Any]) -> None:
    with AutoAWQForCausalLM.from_quantized(saved(), max_seq_len=64, **small) as model:
        assert model.model.llm.engine.max_model_len == 64
    with AutoModelForCausalLM.from_pretrained(saved(), **small) as model:
        assert model.config.quantization_config["quant_method"] == "awq"
