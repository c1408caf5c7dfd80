"""What configurations say of matrices, without the matrices."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoints.formats.awq import AWQFormat
from quire.checkpoints.formats.compressed_tensors import WholeBytes
from quire.checkpoints.formats.gptq import GPTQFormat
from quire.checkpoints.quantized.quantization_config import StoredQuantization, read_quantization
from quire.core.errors import ModelLoadError


def made_config(tmp_path: Path, **settings: Any) -> StoredQuantization:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    found = read_quantization(tmp_path)
    assert found is not None
    return found


def test_settings_that_published_checkpoints_have(tmp_path: Path) -> None:
    """Each was refused: of Meta's 405B, of Mistral's and MiniMax' FP8, of an early modelopt."""
    meta = made_config(
        tmp_path,
        quant_method="fbgemm_fp8",
        activation_scale_ub=1200.0,
        modules_to_not_convert=["model.layers.0.mlp"],
    )
    assert meta.format_of("model.layers.0.mlp.up_proj") is None and meta.notices
    assert "input_scale_ub" in meta.formats[0].parts
    mistral = made_config(
        tmp_path, quant_method="fp8", weight_block_size=None, activation_scheme="static"
    )
    assert mistral.formats[0].marker == "weight_scale_inv"
    assert "activation_scale" in mistral.formats[0].parts
    auto_fp8 = made_config(tmp_path, quant_method="fp8", activation_scheme="static")
    assert auto_fp8.formats[0].marker == "weight_scale"
    minimax = {"weight_block_size": [128, 128], "fmt": "float8_e4m3fn"}
    assert made_config(tmp_path, quant_method="fp8", **minimax).method == "fp8"
    assert made_config(tmp_path, quant_algo="FP8").method == "modelopt"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "quantize_config.json").write_text('{"per_channel": true, "reduce_range": true}')
    assert read_quantization(tmp_path) is None, "an export to ONNX"


@pytest.mark.parametrize(
    ("method", "packing", "zeros_less_one"),
    [
        ("intel/auto-round", {"backend": "auto_round:gptq:exllamav2"}, True),
        ("auto-round", {"backend": "auto_round:gptq:exllamav2"}, True),
        ("auto-round", {"backend": "auto_gptq:exllamav2"}, True),
        ("intel/auto-round", {"backend": "auto_round:exllamav2"}, False),
        ("auto-round", {"backend": "auto", "packing_format": "auto_round:gptq"}, True),
    ],
)
def test_the_first_auto_round_names_the_packing_in_backend(
    method: str, packing: dict[str, str], zeros_less_one: bool, tmp_path: Path
) -> None:
    """Zeros were read as one less than they are; ``intel/auto-round`` was refused."""
    found = made_config(tmp_path, quant_method=method, bits=4, group_size=32, sym=True, **packing)
    (whole,) = found.formats
    assert isinstance(whole, GPTQFormat) and whole.zeros_less_one is zeros_less_one
    assert found.method == "auto-round"


def test_awq_of_auto_round(tmp_path: Path) -> None:
    settings = {"bits": 4, "group_size": 32, "backend": "auto_round:awq:gemm"}
    found = made_config(tmp_path, quant_method="intel/auto-round", **settings)
    assert isinstance(found.formats[0], AWQFormat) and found.method == "auto-round"


@pytest.mark.parametrize("name", ["checkpoint_format", "format"])
def test_either_name_of_a_packing_is_read(name: str, tmp_path: Path) -> None:
    """``format`` was passed over: zeros of version 2 were read as one more than they are."""
    settings = {"bits": 4, "group_size": 32, "sym": True}
    found = made_config(tmp_path, quant_method="gptq", **settings, **{name: "gptq_v2"})
    assert isinstance(found.formats[0], GPTQFormat) and not found.formats[0].zeros_less_one
    with pytest.raises(ModelLoadError, match=f"{name} must be gemm; got 'gemv_fast'"):
        made_config(tmp_path, quant_method="awq", **settings, **{name: "gemv_fast"})


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_that_does_not_say_its_name(bits: int, tmp_path: Path) -> None:
    """Transformers wrote such configurations before other methods came, and reads them."""
    found = made_config(tmp_path, **{f"load_in_{bits}bit": True, "llm_int8_threshold": 6.0})
    assert found.method == "bitsandbytes"
    for settings in ({"load_in_4bit": False}, {"bits": 4}):
        with pytest.raises(ModelLoadError, match="quant_method is required"):
            made_config(tmp_path, **settings)


@pytest.mark.parametrize("text", ["128x128", "128", "128x", "0x128", "9" * 5000 + "x1"])
def test_blocks_as_text(text: str, tmp_path: Path) -> None:
    """compressed-tensors wrote and reads ``128x128``; it was refused."""
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": text}
    group = {"targets": ["Linear"], "weights": weights}
    settings = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    settings |= {"config_groups": {"group_0": group}}
    if text == "128x128":
        found = made_config(tmp_path, **settings)
        assert isinstance(found.formats[0], WholeBytes) and found.formats[0].block == (128, 128)
    else:
        with pytest.raises(ModelLoadError, match="block_structure must be two sizes"):
            made_config(tmp_path, **settings)


GROUPS = {
    "class": (2, ["Linear"]),
    "pattern": (3, [r"re:.*\.down_proj$"]),
    "later pattern": (4, [r"re:model\..*"]),
    "name": (8, ["model.layers.0.mlp.down_proj"]),
}


def test_the_most_specific_group_counts(tmp_path: Path) -> None:
    """The first group of the file was taken; llm-compressor orders them by their names."""
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    groups = {
        key: {"targets": targets, "weights": {"num_bits": bits, "type": "int", "group_size": 32}}
        for key, (bits, targets) in GROUPS.items()
    }
    for order in itertools.permutations(GROUPS):
        made = settings | {"config_groups": {key: groups[key] for key in order}}
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": made}))
        found = read_quantization(tmp_path)
        assert found is not None
        bits = [
            getattr(found.format_of(module), "bits", None)
            for module in ("model.layers.0.mlp.down_proj", "vision.1.down_proj", "model.up", "x.up")
        ]
        assert bits == [8, 3, 4, 2]
