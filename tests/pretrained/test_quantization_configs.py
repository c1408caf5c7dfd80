"""Each setting of quantization: what it makes of the written checkpoint, or that it is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoints.checkpoint import Checkpoint
from quire.core.errors import ConfigError
from quire.pretrained import AutoModelForCausalLM, AwqConfig, BitsAndBytesConfig, GPTQConfig
from quire.pretrained.quantized_folder import TemporaryFolder, quantized_folder
from tests.pretrained.conftest import Config
from tests.quantizing.stored_values import files_of, quantized_names

Made = Callable[[Any], Path]


@pytest.fixture(scope="module")
def made(checkpoint: Callable[..., Path]) -> Made:
    """Return a function that carries settings out on a small model, once for each of them."""
    kept: dict[str, TemporaryFolder] = {}

    def make(settings: Any) -> Path:
        key = repr(settings)
        if key not in kept:
            kept[key] = quantized_folder("test", checkpoint(), settings.asked(), key, 1)
        return kept[key].path

    return make


def skipped(folder: Path) -> set[str]:
    """Return the kinds of matrices that are floats."""
    kinds = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    return kinds - {name.rsplit(".", 2)[1] for name in quantized_names(folder)}


@pytest.mark.parametrize(
    ("options", "entries"),
    [
        ({"load_in_8bit": True}, {"load_in_8bit": True, "llm_int8_threshold": 6.0}),
        ({"load_in_8bit": True, "llm_int8_threshold": 4}, {"llm_int8_threshold": 4.0}),
        ({"load_in_4bit": True}, {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
        ({"load_in_4bit": True}, {"bnb_4bit_use_double_quant": False}),
        ({"load_in_4bit": True}, {"bnb_4bit_compute_dtype": "float32"}),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, {"bnb_4bit_quant_type": "nf4"}),
        (
            {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            {"bnb_4bit_use_double_quant": True},
        ),
        (
            {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"},
            {"bnb_4bit_compute_dtype": "bfloat16"},
        ),
        (
            {"load_in_4bit": True, "bnb_4bit_quant_storage": "uint8"},
            {"bnb_4bit_quant_storage": "uint8"},
        ),
    ],
)
def test_bitsandbytes(
    made: Made, stored: Config, options: dict[str, Any], entries: dict[str, Any]
) -> None:
    folder = made(BitsAndBytesConfig(**options))
    assert entries.items() <= stored(folder).items()
    assert not skipped(folder)


@pytest.mark.parametrize(("double", "dtype"), [(False, "F32"), (True, "U8")])
def test_scales_are_bytes_with_double_quantization(made: Made, double: bool, dtype: str) -> None:
    options = {"load_in_4bit": True, "bnb_4bit_use_double_quant": double}
    stored = Checkpoint(made(BitsAndBytesConfig(**options)))
    assert stored.entry("model.layers.0.mlp.up_proj.weight.absmax").dtype == dtype


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["lm_head"], set()),
        (["down_proj"], {"down_proj"}),
        (["self_attn"], {"q_proj", "k_proj", "v_proj", "o_proj"}),
    ],
)
def test_modules_that_are_skipped(
    made: Made, stored: Config, names: list[str], kinds: set[str]
) -> None:
    folder = made(BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=names))
    assert skipped(folder) == kinds
    ends = {name.rsplit(".", 1)[-1] for name in stored(folder)["llm_int8_skip_modules"]}
    assert ends == kinds | {"lm_head"}


def test_layers_are_skipped_by_how_names_begin(made: Made) -> None:
    folder = made(AwqConfig(group_size=32, modules_to_not_convert=["model.layers.0."]))
    assert {name.split(".")[2] for name in quantized_names(folder)} == {"1", "2"}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (BitsAndBytesConfig, {}, "one of load_in_8bit and load_in_4bit must be True; got none"),
        (BitsAndBytesConfig, {"load_in_8bit": True, "load_in_4bit": True}, "got both"),
        (
            BitsAndBytesConfig,
            {"load_in_8bit": True, "llm_int8_enable_fp32_cpu_offload": True},
            "llm_int8_enable_fp32_cpu_offload must be False",
        ),
        (
            BitsAndBytesConfig,
            {"load_in_8bit": True, "llm_int8_has_fp16_weight": True},
            "llm_int8_has_fp16_weight must be False",
        ),
        (
            BitsAndBytesConfig,
            {"load_in_8bit": True, "llm_int8_threshold": "6"},
            "llm_int8_threshold must be a number",
        ),
        (
            BitsAndBytesConfig,
            {"load_in_4bit": True, "bnb_4bit_quant_type": "nf3"},
            "bnb_4bit_quant_type must be fp4 or nf4; got nf3",
        ),
        (
            BitsAndBytesConfig,
            {"load_in_4bit": True, "bnb_4bit_compute_dtype": "int8"},
            "bnb_4bit_compute_dtype must be one of",
        ),
        (
            BitsAndBytesConfig,
            {"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"},
            "bnb_4bit_quant_storage must be uint8",
        ),
        (GPTQConfig, {"bits": 5}, "--bits must be one of 2, 3, 4, 8; got 5"),
        (GPTQConfig, {"bits": 4, "group_size": 48}, "--group-size must be 16"),
        (GPTQConfig, {"bits": 4, "damp_percent": 0}, "--damping must be over 0"),
        (GPTQConfig, {"bits": 4, "dataset": "c4"}, "nothing is fetched; got 'c4'"),
        (GPTQConfig, {"bits": 4, "dataset": [3]}, "dataset must hold texts"),
        (GPTQConfig, {"bits": 4, "sym": False}, "format must be gptq_v2 for sym=False; got gptq"),
        (GPTQConfig, {"bits": 4, "format": "marlin"}, "format must be gptq for sym=True"),
        (GPTQConfig, {"bits": 4, "backend": "exllama_v2"}, "backend must be None"),
        (GPTQConfig, {"bits": 4, "block_name_to_quantize": "h"}, "block_name_to_quantize must"),
        (
            GPTQConfig,
            {"bits": 4, "module_name_preceding_first_block": ["a"]},
            "module_name_preceding_first_block must be None",
        ),
        (GPTQConfig, {"bits": 4, "max_input_length": 4096}, "max_input_length must be None"),
        (GPTQConfig, {"bits": 4, "cache_block_outputs": False}, "cache_block_outputs must be True"),
        (
            GPTQConfig,
            {"bits": 4, "modules_in_block_to_quantize": [["mlp.down_proj"], ["self_attn.q_proj"]]},
            "in this order",
        ),
        (AwqConfig, {"bits": 3}, r"\[AwqConfig\] bits must be 4; got 3"),
        (AwqConfig, {"backend": "exllama"}, "backend must be auto"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(kind: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**options)


def gptq(texts: list[str], **options: Any) -> GPTQConfig:
    return GPTQConfig(
        **{"bits": 4, "group_size": 32, "dataset": texts, "model_seqlen": 64} | options
    )


@pytest.mark.parametrize(
    ("options", "entries"),
    [
        ({}, {"bits": 4, "group_size": 32, "sym": True, "desc_act": False}),
        ({}, {"damp_percent": 0.1, "true_sequential": True, "act_group_aware": True}),
        ({"bits": 3}, {"bits": 3}),
        ({"group_size": 64}, {"group_size": 64}),
        ({"damp_percent": 0.05}, {"damp_percent": 0.05}),
        ({"desc_act": True}, {"desc_act": True}),
        ({"true_sequential": False}, {"true_sequential": False}),
        ({"sym": False, "format": "gptq_v2"}, {"sym": False, "checkpoint_format": "gptq_v2"}),
        ({"meta": {"quantizer": ["me"]}}, {"meta": {"quantizer": ["me"]}}),
    ],
)
def test_gptq(
    made: Made, stored: Config, texts: list[str], options: dict[str, Any], entries: dict[str, Any]
) -> None:
    folder = made(gptq(texts, **options))
    assert entries.items() <= stored(folder).items()
    weights = files_of(folder)["model.safetensors"]
    plain = files_of(made(gptq(texts)))["model.safetensors"]
    assert (weights == plain) is (options.keys() <= {"meta"})


@pytest.mark.parametrize(
    "options",
    [
        {"act_group_aware": False},
        {"model_seqlen": 32},
        {"dataset": None},
        {"tokenizer": lambda text: {"input_ids": [ord(letter) % 200 for letter in text]}},
    ],
    ids=["order", "length", "text", "tokenizer"],
)
def test_what_gptq_looks_at_changes_the_weights(
    made: Made, texts: list[str], options: dict[str, Any]
) -> None:
    plain, other = made(gptq(texts)), made(gptq(texts, **options))
    assert files_of(plain)["model.safetensors"] != files_of(other)["model.safetensors"]


def test_a_folder_s_tokenizer_and_a_file_of_texts_are_taken(
    made: Made, checkpoint: Callable[..., Path], texts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("".join(texts))
    joined = made(gptq(["".join(texts)]))
    same = made(gptq(texts, dataset=str(path), tokenizer=str(checkpoint())))
    assert files_of(same)["model.safetensors"] == files_of(joined)["model.safetensors"]


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"pad_token_id": 0}])
def test_what_changes_nothing_is_told(
    made: Made, texts: list[str], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder = made(gptq(texts, **options))
    assert "changes nothing: samples are computed without padding" in caplog.text
    assert files_of(folder) == files_of(made(gptq(texts)))


def test_modules_in_a_block_that_are_quantized(made: Made, texts: list[str]) -> None:
    stages = [["self_attn.v_proj", "self_attn.q_proj"], ["mlp.up_proj", "mlp.gate_proj"]]
    folder = made(gptq(texts, modules_in_block_to_quantize=stages))
    assert skipped(folder) == {"k_proj", "o_proj", "down_proj"}


def test_orders_of_columns_exclude_each_other() -> None:
    assert not GPTQConfig(4, desc_act=True).act_group_aware
    assert GPTQConfig(4).act_group_aware


@pytest.mark.parametrize(
    ("options", "entries"),
    [
        ({}, {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
        ({"group_size": 64}, {"group_size": 64}),
        ({"zero_point": False}, {"zero_point": False}),
    ],
)
def test_awq(made: Made, stored: Config, options: dict[str, Any], entries: dict[str, Any]) -> None:
    assert entries.items() <= stored(made(AwqConfig(**{"group_size": 32} | options))).items()


def test_names_that_fit_nothing_are_refused(made: Made) -> None:
    with pytest.raises(ConfigError, match="a name to skip must fit a matrix of the model; got h.0"):
        made(BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["h.0"]))


def test_settings_are_told_by_name() -> None:
    told = GPTQConfig(bits=3, dataset=["a"]).to_dict()
    assert told["quant_method"] == "gptq" and told["bits"] == 3 and told["dataset"] == ["a"]
    assert told.keys() == {each.name for each in dataclasses.fields(GPTQConfig)} | {"quant_method"}


def test_a_quantized_checkpoint_takes_no_other_method(
    made: Made, small: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder, eight = made(BitsAndBytesConfig(load_in_8bit=True)), {"load_in_8bit": True}
    with pytest.raises(ConfigError, match="must be of the checkpoint's method bitsandbytes"):
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=AwqConfig())
    config = BitsAndBytesConfig(**eight)
    with AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, **small) as model:
        assert model.generate([[1, 2, 3]], max_new_tokens=2)
    assert "the checkpoint is quantized already, as its own settings say" in caplog.text
