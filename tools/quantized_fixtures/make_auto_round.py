"""Write fixtures in the GPTQ and AWQ layouts with auto-round, and its own dequantized weights.

Environment: ``pip install torch==2.13.0``, then ``auto-round==0.16.1``. From the repository's root,
``python -m tools.quantized_fixtures.make_auto_round [NAME ...]``.

The oracle is auto-round's own inference code: what its torch modules would multiply by, and
``dequantize_gemm`` for AWQ.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from auto_round import AutoRound
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round_extension.torch.qlinear_torch import QuantLinear
from auto_round_extension.torch.qlinear_torch_zp import QuantLinear as QuantLinearZeroMinusOne
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.quantized_fixtures.base import SMALL, WIDE, run, unquantized_folder, write_fixture


def linears(tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the name of each quantized linear."""
    yield from (key.removesuffix(".qweight") for key in tensors if key.endswith(".qweight"))


def dequantize_gptq(tensors: Mapping[str, torch.Tensor], name: str, config: dict[str, Any]):
    """Return the (out, in) float16 weight by auto-round's module for the file's convention."""
    minus_one = config["quant_method"] == "gptq" or "gptq" in config.get("packing_format", "")
    kind = QuantLinearZeroMinusOne if minus_one else QuantLinear
    bits, group_size = config["bits"], config["group_size"]
    qweight, qzeros, scales = (tensors[f"{name}.{key}"] for key in ("qweight", "qzeros", "scales"))
    g_idx = tensors.get(f"{name}.g_idx")
    columns, rows = qweight.shape[0] * 32 // bits, qweight.shape[1]
    # With g_idx the module drops rows past the number of columns, so it gets them in small parts.
    step = rows if g_idx is None else 32
    parts = []
    for row in range(0, rows, step):
        own = {
            "qweight": qweight[:, row : row + step],
            "qzeros": qzeros[:, row * bits // 32 : (row + step) * bits // 32],
            "scales": scales[:, row : row + step],
        }
        module = kind(bits, group_size, columns, step, bias=False, g_idx=g_idx is not None)
        module.load_state_dict(own if g_idx is None else own | {"g_idx": g_idx})
        # Not a product with the identity: that would turn -0 into 0.
        with patch("torch.matmul", lambda x, weight: weight):
            parts.append(module(torch.empty((columns, columns), dtype=torch.float16)).T)
    return torch.cat(parts)


def dequantize_awq(tensors: Mapping[str, torch.Tensor], name: str, config: dict[str, Any]):
    """Return the (out, in) float16 weight by auto-round's decoder of the AWQ layout."""
    parts = [tensors[f"{name}.{key}"] for key in ("qweight", "qzeros", "scales")]
    return dequantize_gemm(*parts, config["bits"], config["group_size"]).T


def make(
    name: str,
    *,
    format: str = "auto_gptq",
    dtype: torch.dtype = torch.float16,
    sizes: Mapping[str, int] = SMALL,
    **scheme: Any,
) -> None:
    """Round the tiny model to nearest and write it in one format."""
    with unquantized_folder(dtype, sizes=sizes) as folder, tempfile.TemporaryDirectory() as output:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        rounding = AutoRound(
            model,
            AutoTokenizer.from_pretrained(folder),
            iters=0,
            disable_opt_rtn=True,
            dataset=str(folder / "texts.json"),
            seqlen=32,
            nsamples=8,
            device_map="cpu",
            **scheme,
        )
        rounding.quantize_and_save(output_dir=output, format=format)
        saved = next(path.parent for path in Path(output).rglob("config.json"))
        config = json.loads((saved / "config.json").read_text())["quantization_config"]
        tensors = load_file(saved / "model.safetensors")
        is_awq = "awq" in config["quant_method"] + config.get("packing_format", "")
        decode = dequantize_awq if is_awq else dequantize_gptq
        weights = {f"{key}.weight": decode(tensors, key, config) for key in linears(tensors)}
        write_fixture(name, saved, weights)


CASES = {
    "gptq-w4-g32": partial(make, bits=4, group_size=32, sym=True),
    "gptq-w4-g32-asymmetric": partial(make, bits=4, group_size=32, sym=False),
    "gptq-w4-g128": partial(make, bits=4, group_size=128, sym=True, sizes=WIDE),
    "gptq-w8-g32": partial(make, bits=8, group_size=32, sym=True),
    "gptq-w3-g32": partial(make, bits=3, group_size=32, sym=True),
    "gptq-w2-g32": partial(make, bits=2, group_size=32, sym=False),
    "awq-w4-g32": partial(make, bits=4, group_size=32, sym=False, format="auto_awq"),
    "auto-round-w4-g32": partial(make, bits=4, group_size=32, sym=True, format="auto_round"),
    "auto-round-w3-g32": partial(make, bits=3, group_size=32, sym=False, format="auto_round"),
}

if __name__ == "__main__":
    run(CASES)
