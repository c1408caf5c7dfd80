"""Write fixtures in the layout of SqueezeLLM, and what its parts say the weights are.

Environment: ``pip install torch==2.13.0``, then ``transformers==5.24.0``, and a clone of
https://github.com/SqueezeAILab/SqueezeLLM (commit a5fd71f353) in ``PYTHONPATH``. From the
repository's root, ``python -m tools.quantized_fixtures.make_squeezellm``.

Its own ``QuantLinearLUT.pack2`` packs; its kernels, which need CUDA, are never called. It saves
with ``torch.save``; here the same tensors are saved as safetensors.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tools.quantized_fixtures.base import is_linear, run, unquantized_folder, write_fixture

sys.modules["quant_cuda"] = ModuleType("quant_cuda")
from squeezellm.quant import QuantLinearLUT  # noqa: E402


def make(name: str, bits: int, share: float) -> None:
    """Quantize with tables of quantiles, and with a share of outliers if it is not 0."""
    with unquantized_folder(torch.float32) as folder, tempfile.TemporaryDirectory() as output:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        weights = {}
        for path, module in list(model.named_modules()):
            if is_linear(path):
                layer = pack(module, bits, share)
                model.set_submodule(path, layer)
                weights[f"{path}.weight"] = dequantize(layer)
        saved = Path(output)
        model.config.save_pretrained(saved)
        config = json.loads((saved / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "squeezellm", "wbits": bits}
        (saved / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(model.state_dict(), saved / "model.safetensors", metadata={"format": "pt"})
        write_fixture(name, saved, weights)


def pack(module: torch.nn.Linear, bits: int, share: float) -> QuantLinearLUT:
    """Return the library's layer of a linear."""
    weight, outliers = module.weight.data, None
    if share:
        least = weight.abs().flatten().quantile(1 - share)
        large = weight.abs() >= least
        outliers, weight = (weight * large).to_sparse(), weight * ~large
    places = (torch.arange(1 << bits) + 0.5) / (1 << bits)
    tables = weight.quantile(places, dim=1).T
    codes = (weight.unsqueeze(-1) - tables.unsqueeze(1)).abs().argmin(-1)
    luts = [[(t, c)] for t, c in zip(tables.numpy(), codes.numpy().astype("int8"), strict=True)]
    layer = QuantLinearLUT(bits, module.in_features, module.out_features, False, bool(share))
    layer.pack2(module, (luts, outliers), bool(share))
    layer.codes = codes
    return layer


def dequantize(layer: QuantLinearLUT) -> torch.Tensor:
    """Return what a layer multiplies by: its tables' values, and its sparse part."""
    weight = layer.lookup_table.gather(1, layer.codes)
    if not layer.include_sparse:
        return weight
    parts = (layer.rows.long(), layer.cols.long(), layer.vals)
    more = torch.sparse_csr_tensor(*parts, size=weight.shape).to_dense()
    return torch.where(more == 0, weight, weight + more)  # -0 + 0 would be 0


CASES = {
    "squeezellm-w4-sparse": partial(make, bits=4, share=0.0045),
    "squeezellm-w3": partial(make, bits=3, share=0.0),
}

if __name__ == "__main__":
    run(CASES)
