"""Write fixtures of GPTQ with gptqmodel: columns in the order of activations, and version 2.

Environment: ``pip install torch==2.13.0``, then ``gptqmodel==7.6.0``. From the repository's root,
``python -m tools.quantized_fixtures.make_gptqmodel [NAME ...]``; with fewer than three processors,
``GPTQMODEL_CPU_WORKERS=2`` in front.

The oracle is ``dequantize_weight`` of gptqmodel's torch layers in the model that it loads again.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from transformers import AutoTokenizer

from tools.quantized_fixtures.base import (
    is_linear,
    run,
    sample_texts,
    unquantized_folder,
    write_fixture,
)


def make(name: str, **choices: Any) -> None:
    """Calibrate on a few texts, save, and dequantize what is loaded from there."""
    with unquantized_folder(torch.float16) as folder, tempfile.TemporaryDirectory() as output:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = GPTQModel.load(
            str(folder), QuantizeConfig(**choices), device="cpu", dtype=torch.float16
        )
        model.quantize([tokenizer(text)["input_ids"] for text in sample_texts()], batch_size=1)
        model.save(output)
        loaded = GPTQModel.load(output, backend=BACKEND.TORCH, device="cpu", dtype=torch.float16)
        weights = {
            f"{path}.weight": module.dequantize_weight().T
            for path, module in loaded.model.named_modules()
            if is_linear(path)
        }
        write_fixture(name, Path(output), weights)


# Without a folder to offload to, which the file would name.
groups_of_32 = partial(make, bits=4, group_size=32, offload_to_disk=False)
CASES = {
    "gptq-w4-g32-act-order": partial(groups_of_32, desc_act=True, sym=True),
    "gptq-v2-w4-g32": partial(groups_of_32, desc_act=False, sym=False, format="gptq_v2"),
}

if __name__ == "__main__":
    run(CASES)
