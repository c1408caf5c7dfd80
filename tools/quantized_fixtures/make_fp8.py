"""Write a fixture of FP8 weights in blocks with ``weight_scale_inv``, as DeepSeek publishes them.

Environment: that of ``make_bitsandbytes``. From the repository's root,
``python -m tools.quantized_fixtures.make_fp8``.

transformers refuses to quantize a model so without an accelerator, but its operation does it on any
device. The oracle is the model that transformers loads, which it dequantizes where it has none.
Published models have blocks of 128 x 128; transformers wants whole ones, so these have 32 x 32.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Quantize

from tools.quantized_fixtures.base import is_linear, run, unquantized_folder, write_fixture


def make(name: str) -> None:
    """Quantize each linear of the tiny model and put the configuration into its file."""
    config = FineGrainedFP8Config(weight_block_size=(32, 32))
    quantize = Fp8Quantize(SimpleNamespace(quantization_config=config))
    with unquantized_folder(torch.bfloat16) as folder:
        tensors = load_file(folder / "model.safetensors")
        names = [key for key in tensors if is_linear(key.removesuffix(".weight"))]
        for key in names:
            tensors |= quantize.convert({key: tensors[key]})
        facts = json.loads((folder / "config.json").read_text())
        facts["quantization_config"] = config.to_dict()
        with tempfile.TemporaryDirectory() as output:
            saved = Path(output)
            save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
            (saved / "config.json").write_text(json.dumps(facts, indent=2) + "\n")
            model = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16)
            write_fixture(name, saved, {key: model.get_parameter(key) for key in names})


CASES = {"fp8-block-32": make}

if __name__ == "__main__":
    run(CASES)
