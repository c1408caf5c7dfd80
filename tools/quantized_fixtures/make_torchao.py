"""Write fixtures of torchao's weight-only integers, saved by transformers as safetensors.

Environment: that of ``make_hqq``. From the repository's root,
``python -m tools.quantized_fixtures.make_torchao [NAME ...]``.

The oracle is ``dequantize`` of torchao's tensors in the model that transformers loads again.
``Int4WeightOnlyConfig`` cannot be made without an accelerator's library.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup
from transformers import AutoModelForCausalLM, TorchAoConfig

from tools.quantized_fixtures.base import is_linear, run, unquantized_folder, write_fixture


def make(name: str, *, choices: Any) -> None:
    """Load the tiny model quantized, save it, and dequantize what is loaded from there."""
    load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.bfloat16, device_map="cpu")
    with (
        unquantized_folder(torch.bfloat16) as folder,
        tempfile.TemporaryDirectory() as output,
    ):
        load(folder, quantization_config=TorchAoConfig(choices)).save_pretrained(output)
        weights = {
            f"{path}.weight": module.weight.dequantize()
            for path, module in load(output).named_modules()
            if is_linear(path)
        }
        write_fixture(name, Path(output), weights)


CASES = {
    "torchao-int8": partial(make, choices=Int8WeightOnlyConfig()),
    "torchao-int4-g32": partial(
        make, choices=IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
    ),
}

if __name__ == "__main__":
    run(CASES)
