"""Write a tiny gpt-oss whose experts have MXFP4 blocks and scales, as the published models have.

Environment: that of ``make_bitsandbytes``. From the repository's root,
``python -m tools.quantized_fixtures.make_mxfp4``.

transformers cannot pack without an accelerator's kernels, so the blocks are random bits (every code
occurs) and the scales random exponents; all other tensors are those of ``GptOssForCausalLM``. The
oracle is ``convert_moe_packed_tensors`` of transformers. The folder is loaded once, dequantized, to
see that transformers reads it so.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tools.quantized_fixtures.base import SYMBOLS, run, write_fixture

#: What the published models say.
QUANTIZATION = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}


def make(name: str) -> None:
    """Replace the experts of a random gpt-oss by blocks and scales."""
    config = GptOssConfig(
        vocab_size=len(SYMBOLS),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_local_experts=2,
        num_experts_per_tok=1,
        pad_token_id=0,
        eos_token_id=2,
        dtype=torch.bfloat16,
    )
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as output:
        saved = Path(output)
        GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(saved)
        dequantized = {}
        tensors = load_file(saved / "model.safetensors")
        for key in [key for key in tensors if key.endswith(("gate_up_proj", "down_proj"))]:
            experts, columns, rows = tensors.pop(key).shape
            shape = (experts, rows, columns // 32, 16)
            blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            scales = torch.randint(118, 125, shape[:-1], dtype=torch.uint8, generator=generator)
            tensors |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
            dequantized[key] = convert_moe_packed_tensors(blocks, scales)
        save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
        facts = json.loads((saved / "config.json").read_text())
        (saved / "config.json").write_text(
            json.dumps(facts | {"quantization_config": QUANTIZATION}, indent=2) + "\n"
        )
        model = AutoModelForCausalLM.from_pretrained(
            saved, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16
        )
        for key, weight in dequantized.items():
            assert torch.equal(model.get_parameter(key), weight), key
        write_fixture(name, saved, dequantized)


CASES = {"gpt-oss-mxfp4": make}

if __name__ == "__main__":
    run(CASES)
