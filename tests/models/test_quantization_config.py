"""What configurations say of matrices, without the matrices."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from quire.models.quantization_config import StoredQuantization, read_quantization


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
