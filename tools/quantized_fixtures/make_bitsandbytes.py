"""Write fixtures of bitsandbytes' 4-bit and 8-bit weights, saved by transformers.

Environment: ``pip install torch==2.13.0``, then ``bitsandbytes==0.50.2 transformers==5.23.0
accelerate``. From the repository's root,
``python -m tools.quantized_fixtures.make_bitsandbytes [NAME ...]``.

The oracle: ``dequantize_4bit`` and ``int8_vectorwise_dequant`` of bitsandbytes.functional, on CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.functional import QuantState, dequantize_4bit, int8_vectorwise_dequant
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tools.quantized_fixtures.base import SMALL, run, unquantized_folder, write_fixture


def dequantize(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each quantized weight: in its state's dtype from 4 bits, float32 from 8 bits."""
    weights = {}
    for name, weight in tensors.items():
        prefix = f"{name}."
        parts = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        if parts:
            state = QuantState.from_dict(parts, device=torch.device("cpu"))
            weights[name] = dequantize_4bit(weight, state)
            continue
        scales = tensors.get(f"{name.removesuffix('weight')}SCB")
        if scales is not None and name.endswith(".weight"):
            weights[name] = int8_vectorwise_dequant(weight, scales)
    return weights


def make(
    name: str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    sizes: Mapping[str, int] = SMALL,
    **choices: Any,
) -> None:
    """Load the tiny model quantized and save it."""
    with unquantized_folder(dtype, sizes=sizes) as folder, tempfile.TemporaryDirectory() as output:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, quantization_config=BitsAndBytesConfig(**choices), device_map="cpu"
        )
        model.save_pretrained(output)
        tensors = load_file(Path(output) / "model.safetensors")
        write_fixture(name, Path(output), dequantize(tensors))


make_4bit = partial(make, load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
CASES = {
    "bnb-nf4": partial(make_4bit, bnb_4bit_quant_type="nf4"),
    "bnb-fp4": partial(make_4bit, bnb_4bit_quant_type="fp4", dtype=torch.float16),
    # A nested block has 256 scales; here an MLP's matrices have 288.
    "bnb-nf4-nested": partial(
        make_4bit,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        sizes=SMALL | {"intermediate_size": 288},
    ),
    "bnb-int8": partial(make, load_in_8bit=True, dtype=torch.float16),
}

if __name__ == "__main__":
    run(CASES)
