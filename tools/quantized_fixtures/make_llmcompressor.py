"""Write fixtures in the formats of compressed-tensors with llmcompressor.

Environment: ``pip install torch==2.13.0``, then ``llmcompressor==0.14.0.1`` (it brings
compressed-tensors 0.19.0 and transformers 5.17). From the repository's root,
``python -m tools.quantized_fixtures.make_llmcompressor [NAME ...]``.

The oracle is each format's compressor of compressed-tensors: ``decompress`` of the saved tensors.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform import SmoothQuantModifier
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.quantized_fixtures.base import (
    PAST_BLOCK,
    SMALL,
    is_linear,
    run,
    unquantized_folder,
    write_fixture,
)


def decompress(saved: Path) -> dict[str, torch.Tensor]:
    """Return the weight of each quantized linear as compressed-tensors decompresses it."""
    config = json.loads((saved / "config.json").read_text())["quantization_config"]
    (group,) = config["config_groups"].values()
    scheme = QuantizationScheme.model_validate(group)
    compressor = BaseCompressor.get_value_from_registry(group.get("format") or config["format"])
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(saved / "model.safetensors").items():
        module, _, field = key.rpartition(".")
        if is_linear(module):
            modules.setdefault(module, {})[field] = tensor
    return {
        f"{module}.weight": compressor.decompress(tensors, scheme)["weight"]
        for module, tensors in modules.items()
    }


def make(
    name: str,
    *,
    recipe: list[Any],
    dtype: torch.dtype = torch.bfloat16,
    sizes: Mapping[str, int] = SMALL,
) -> None:
    """Apply a recipe to the tiny model with a few calibration texts, and save it compressed."""
    with unquantized_folder(dtype, sizes=sizes) as folder, tempfile.TemporaryDirectory() as output:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        oneshot(
            model=model,
            dataset=Dataset.from_list(json.loads((folder / "texts.json").read_text())),
            processor=AutoTokenizer.from_pretrained(folder),
            recipe=[modifier() for modifier in recipe],
            pipeline="basic",
            max_seq_length=32,
            num_calibration_samples=16,
        )
        model.save_pretrained(output, save_compressed=True)
        saved = Path(output)
        write_fixture(name, saved, decompress(saved))


def preset(scheme: str, modifier: type = QuantizationModifier, **choices: Any) -> partial[Any]:
    """Return a maker of a modifier for one of the library's named schemes."""
    return partial(modifier, targets="Linear", scheme=scheme, ignore=["lm_head"], **choices)


def integers(num_bits: int, modifier: type = QuantizationModifier, **weights: Any) -> partial[Any]:
    """Return a maker of a modifier for weights of integers in groups of 32."""
    arguments = {"num_bits": num_bits, "type": "int", "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "weights": arguments | {"symmetric": True} | weights}
    return partial(modifier, config_groups={"group_0": group}, ignore=["lm_head"])


#: Each is a recipe, with arguments of :func:`make`.
RECIPES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "ct-w4a16-g32": ([integers(4)], {}),
    "ct-w4a16-g32-asymmetric": ([integers(4, GPTQModifier, symmetric=False)], {}),
    "ct-w4a16-g32-actorder": ([integers(4, GPTQModifier, actorder="weight")], {}),
    "ct-w8a16-channel": (
        [integers(8, strategy="channel", group_size=None)],
        {"dtype": torch.float16},
    ),
    "ct-w3a16-g32": ([integers(3)], {}),
    "ct-w8a8-int8": (
        [partial(SmoothQuantModifier, smoothing_strength=0.6), preset("W8A8", GPTQModifier)],
        {},
    ),
    "ct-fp8-dynamic": ([preset("FP8_DYNAMIC")], {}),
    "ct-fp8-static": ([preset("FP8")], {}),
    "ct-fp8-block": ([preset("FP8_BLOCK")], {"sizes": PAST_BLOCK}),
    "ct-nvfp4": ([preset("NVFP4")], {}),
    "ct-nvfp4a16": ([preset("NVFP4A16")], {}),
    "ct-mxfp4": ([preset("MXFP4")], {}),
    "ct-mxfp8": ([preset("MXFP8")], {}),
}
CASES = {
    name: partial(make, recipe=recipe, **choices) for name, (recipe, choices) in RECIPES.items()
}

if __name__ == "__main__":
    run(CASES)
