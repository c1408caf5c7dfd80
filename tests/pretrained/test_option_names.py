"""Names and defaults of options are those of the libraries whose calls these are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.pretrained import (
    AutoAWQForCausalLM,
    AutoGPTQForCausalLM,
    AutoModelForCausalLM,
    AwqConfig,
    BaseQuantizeConfig,
    BitsAndBytesConfig,
    GPTQConfig,
    auto_awq,
    auto_gptq,
    auto_model,
)
from quire.pretrained import generation_config as generation
from quire.pretrained.foreign_options import ForeignOption, read_options

#: AutoAWQ 0.2.9 (commit 88e4c76), AutoGPTQ 0.8.0.dev0: neither installs next to this torch.
THEIRS: dict[str, tuple[Mapping[str, ForeignOption], dict[str, Any]]] = {
    "AutoAWQForCausalLM.from_pretrained": (
        auto_awq.LOAD_FLOATS,
        {
            "torch_dtype": "auto",
            "trust_remote_code": True,
            "safetensors": True,
            "device_map": None,
            "download_kwargs": None,
            "low_cpu_mem_usage": True,
            "use_cache": False,
        },
    ),
    "AutoAWQForCausalLM.quantize": (
        auto_awq.QUANTIZE,
        {
            "tokenizer": None,
            "quant_config": {},
            "calib_data": "pileval",
            "split": "train",
            "text_column": "text",
            "duo_scaling": True,
            "export_compatible": False,
            "apply_clip": True,
            "n_parallel_calib_samples": None,
            "max_calib_samples": 128,
            "max_calib_seq_len": 512,
            "max_chunk_memory": 1024 * 1024 * 1024,
            "quantizer_cls": "AwqQuantizer",
        },
    ),
    "AutoAWQForCausalLM.quant_config": (
        auto_awq.CONFIG,
        {
            "quant_method": "awq",
            "zero_point": True,
            "q_group_size": 128,
            "w_bit": 4,
            "version": "gemm",
            "modules_to_not_convert": None,
        },
    ),
    "AutoAWQForCausalLM.save_quantized": (
        auto_awq.SAVE,
        {"safetensors": True, "shard_size": "5GB"},
    ),
    "AutoAWQForCausalLM.from_quantized": (
        auto_awq.LOAD_QUANTIZED,
        {
            "quant_filename": "",
            "max_seq_len": 2048,
            "trust_remote_code": True,
            "fuse_layers": True,
            "use_exllama": False,
            "use_exllama_v2": False,
            "use_ipex": False,
            "batch_size": 1,
            "safetensors": True,
            "device_map": "balanced",
            "max_memory": None,
            "offload_folder": None,
            "download_kwargs": None,
        },
    ),
    "AutoGPTQForCausalLM.from_pretrained": (
        auto_gptq.LOAD_FLOATS,
        {"max_memory": None, "trust_remote_code": False},
    ),
    "AutoGPTQForCausalLM.quantize": (
        auto_gptq.QUANTIZE,
        {
            "batch_size": 1,
            "use_triton": False,
            "use_cuda_fp16": True,
            "autotune_warmup_after_quantized": False,
            "cache_examples_on_gpu": True,
        },
    ),
    "AutoGPTQForCausalLM.save_quantized": (
        auto_gptq.SAVE,
        {"use_safetensors": True, "safetensors_metadata": None},
    ),
    "AutoGPTQForCausalLM.from_quantized": (
        auto_gptq.LOAD_QUANTIZED,
        {
            "device_map": None,
            "max_memory": None,
            "device": None,
            "low_cpu_mem_usage": False,
            "use_triton": False,
            "use_qigen": False,
            "use_marlin": False,
            "torch_dtype": None,
            "inject_fused_attention": False,
            "inject_fused_mlp": False,
            "use_cuda_fp16": True,
            "quantize_config": None,
            "model_basename": None,
            "use_safetensors": True,
            "trust_remote_code": False,
            "warmup_triton": False,
            "trainable": False,
            "disable_exllama": None,
            "disable_exllamav2": False,
            "use_tritonv2": False,
            "checkpoint_format": None,
        },
    ),
}
#: Defaults that differ: nothing is fetched, the context is the model's, one place has all.
OWN_DEFAULTS = {
    "calib_data": None,
    "quant_config": None,
    "quantizer_cls": None,
    "max_seq_len": None,
    "device_map": None,
}
BASE_QUANTIZE_CONFIG = {
    "bits": 4,
    "group_size": -1,
    "damp_percent": 0.01,
    "desc_act": True,
    "static_groups": False,
    "sym": True,
    "true_sequential": True,
    "quant_method": "gptq",
    "checkpoint_format": "gptq",
    "model_name_or_path": None,
    "model_file_base_name": None,
}


@pytest.mark.parametrize("call", THEIRS)
def test_calls_take_the_options_of_their_libraries(call: str) -> None:
    options, theirs = THEIRS[call]
    assert theirs.keys() <= options.keys()
    for name, default in theirs.items():
        assert options[name].default == OWN_DEFAULTS.get(name, default), name
        assert read_options(call, options, {name: options[name].default})


def test_the_settings_of_auto_gptq_are_its_own() -> None:
    found = {each.name: each.default for each in fields(BaseQuantizeConfig)}
    assert found == BASE_QUANTIZE_CONFIG


@pytest.mark.parametrize("ours", [BitsAndBytesConfig, GPTQConfig, AwqConfig])
def test_settings_of_transformers_have_its_names_order_and_defaults(ours: type) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = inspect.signature(getattr(transformers, ours.__name__).__init__).parameters.values()
    named = [each for each in theirs if each.name != "self" and each.kind != each.VAR_KEYWORD]
    found = fields(ours)  # type: ignore[arg-type]
    assert [each.name for each in found] == [each.name for each in named]
    for each, wanted in zip(found, named, strict=True):
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        known = wanted.default
        assert default == getattr(known, "value", known), each.name


def test_generation_knows_every_setting_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    names = {name for name in transformers.GenerationConfig().to_dict() if name[0] != "_"}
    assert names - {"transformers_version"} == generation.OPTIONS.keys() - {"seed"}
    of_call = inspect.signature(transformers.GenerationMixin.generate).parameters
    assert of_call.keys() - {"self", "kwargs"} <= generation.ARGUMENTS.keys()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name)
        for name, options in {
            "generate": generation.OPTIONS | generation.ARGUMENTS,
            "model": auto_model.OPTIONS,
            **{name: options for name, (options, _) in THEIRS.items()},
        }.items()
    ],
)
def test_what_is_not_done_is_refused_by_name(options: Mapping[str, ForeignOption]) -> None:
    refused = [name for name, option in options.items() if option.why and option.is_refused]
    assert refused or options is auto_gptq.QUANTIZE
    for name in refused:
        with pytest.raises(ConfigError, match=rf"^\[here\] {name} .*; got 'something'. Leave it"):
            read_options("here", options, {name: "something"})
        assert read_options("here", options, {name: options[name].default})


def test_what_changes_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    read_options("here", generation.OPTIONS, {"cache_implementation": "static", "use_cache": True})
    (line,) = caplog.messages
    assert line.startswith("[here] cache_implementation='static' changes nothing: the KV cache")


def test_numbers_that_ask_for_nothing_may_be_of_any_type() -> None:
    read_options("here", generation.OPTIONS, {"length_penalty": 1, "num_beams": 1})
    with pytest.raises(ConfigError, match="num_beams is a setting of beam search"):
        read_options("here", generation.OPTIONS, {"num_beams": True})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="got temprature"):
        read_options("here", generation.OPTIONS, {"temprature": 1.0})


@pytest.mark.parametrize("kind", [AutoModelForCausalLM, AutoAWQForCausalLM, AutoGPTQForCausalLM])
def test_a_class_without_objects_says_what_makes_them(kind: type) -> None:
    with pytest.raises(ConfigError, match="made by from_pretrained"):
        kind()


def test_a_tokenizer_is_told_where_it_is() -> None:
    with pytest.raises(ImportError, match="Import it from transformers, or take model.llm.get_tok"):
        from quire.pretrained import AutoTokenizer  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'AutoTokenize'"):
        from quire.pretrained import AutoTokenize  # noqa: F401
