"""Write inputs of linears rounded by compressed-tensors and by bitsandbytes.

Environment: ``pip install torch==2.13.0 compressed-tensors==0.20.0 bitsandbytes==0.50.0``. From the
repository's root, ``python -m tools.quantized_fixtures.make_rounded_inputs``.

compressed-tensors: ``forward_quantize`` of a module's inputs, float32. bitsandbytes:
``int8_vectorwise_quant`` of one row at a time, float16, so that outliers are those of the row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from bitsandbytes.functional import int8_vectorwise_quant
from compressed_tensors.quantization import QuantizationArgs, QuantizationStatus
from compressed_tensors.quantization.lifecycle.forward import forward_quantize
from safetensors.torch import save_file

FILE = Path(__file__).parents[2] / "tests/fixtures/quantized/rounded-inputs.safetensors"
ROWS, COLUMNS = 12, 96
BYTES = {"num_bits": 8, "type": "int"}
FLOATS = {"num_bits": 8, "type": "float"}
FOUR = {"num_bits": 4, "type": "float"}
TOKEN = {"strategy": "token", "dynamic": True}
TENSOR = {"strategy": "tensor", "dynamic": False}
#: Arguments, and what is stored with the module.
CASES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "int8-token": ({**BYTES, **TOKEN}, {}),
    "int8-token-zeros": ({**BYTES, **TOKEN, "symmetric": False}, {}),
    "int8-tensor": ({**BYTES, **TENSOR}, {"input_scale": 0.03}),
    "int8-tensor-zeros": (
        {**BYTES, **TENSOR, "symmetric": False},
        {"input_scale": 0.02, "input_zero_point": -37},
    ),
    "e4m3-token": ({**FLOATS, **TOKEN}, {}),
    "e4m3-tensor": ({**FLOATS, **TENSOR}, {"input_scale": 0.003}),
    "e4m3-powers": (
        {**FLOATS, "strategy": "group", "group_size": 32, "dynamic": True}
        | {"scale_dtype": torch.uint8},
        {},
    ),
    "e2m1-powers": (
        {
            **FOUR,
            "strategy": "group",
            "group_size": 32,
            "dynamic": True,
            "scale_dtype": torch.uint8,
        },
        {},
    ),
    "e2m1-groups": (
        {**FOUR, "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
        | {"scale_dtype": torch.float8_e4m3fn},
        {"input_global_scale": 70.0},
    ),
    "e4m3-group-32": ({**FLOATS, "strategy": "group", "group_size": 32, "dynamic": True}, {}),
}


def inputs() -> torch.Tensor:
    """Return rows of many sizes, with outliers, ties and the extremes of either sign."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator)
    x *= torch.logspace(-3, 1, ROWS)[:, None]
    x[3, 7], x[4, 9], x[5, 20:24] = 40.0, -40.0, torch.tensor([6.0, -6.0, 7.5, -9.0])
    x[6] = torch.arange(COLUMNS) / 8 - 6
    x[7] = x[7].abs()
    x[8] = 0
    return x.half().float()


def rounded(x: torch.Tensor, arguments: dict[str, Any], stored: dict[str, float]) -> torch.Tensor:
    """Return what a linear with such inputs multiplies."""
    module = torch.nn.Linear(COLUMNS, 1)
    module.quantization_status = QuantizationStatus.FROZEN
    for name, number in stored.items():
        dtype = torch.int8 if name.endswith("zero_point") else torch.float32
        module.register_buffer(name, torch.tensor([number], dtype=dtype))
    # Rows are tokens of one text: of two dimensions the library would take no token's own scale.
    return forward_quantize(module, x[None], "input", QuantizationArgs(**arguments))[0]


def main() -> None:
    """Write the file."""
    x = inputs()
    tensors = {"x": x} | {name: rounded(x, *case) for name, case in CASES.items()}
    parts = [int8_vectorwise_quant(row[None].half(), threshold=6.0)[:2] for row in x]
    tensors["outliers-codes"] = torch.cat([codes for codes, _ in parts])
    tensors["outliers-largest"] = torch.cat([largest.reshape(1).float() for _, largest in parts])
    save_file(tensors, FILE)


if __name__ == "__main__":
    main()
