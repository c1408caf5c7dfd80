"""Write a fixture in the layout of HQQ, and its own dequantized weights.

Environment: ``pip install torch==2.13.0``, then ``transformers==5.23.0 accelerate
hqq==0.2.8.post1 torchao==0.18.0``. From the repository's root,
``python -m tools.quantized_fixtures.make_hqq``.

transformers 5.23 neither makes nor reads these files; version 4 saved what is written here: the
state of HQQ's own layers. The oracle is ``HQQLinear.dequantize`` after loading the saved tensors.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, HqqConfig

from tools.quantized_fixtures.base import is_linear, run, unquantized_folder, write_fixture


def make(name: str) -> None:
    """Quantize in groups of 64 that run on over the ends of rows of 96."""
    choices = {"nbits": 4, "group_size": 64, "axis": 1}
    with unquantized_folder(torch.float16) as folder, tempfile.TemporaryDirectory() as output:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16)
        for path, module in list(model.named_modules()):
            if is_linear(path):
                layer = HQQLinear(
                    module,
                    BaseQuantizeConfig(**choices),
                    compute_dtype=torch.float16,
                    device="cpu",
                )
                model.set_submodule(path, layer)
        saved = Path(output)
        model.config.save_pretrained(saved)
        config = json.loads((saved / "config.json").read_text())
        config["quantization_config"] = HqqConfig(**choices).to_dict()
        (saved / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(model.state_dict(), saved / "model.safetensors", metadata={"format": "pt"})
        write_fixture(name, saved, dequantize(load_file(saved / "model.safetensors")))


def dequantize(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each weight as a fresh HQQ layer with the saved state dequantizes it."""
    weights = {}
    for path in [key.removesuffix(".W_q") for key in tensors if key.endswith(".W_q")]:
        state = {
            key.removeprefix(f"{path}."): value
            for key, value in tensors.items()
            if key.startswith(f"{path}.")
        }
        layer = HQQLinear(None, None, compute_dtype=torch.float16, device="cpu", initialize=False)
        layer.load_state_dict(state)
        weights[f"{path}.weight"] = layer.dequantize()
    return weights


CASES = {"hqq-w4-g64": make}

if __name__ == "__main__":
    run(CASES)
