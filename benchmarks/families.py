"""Speed of each family next to Llama's, two layers of a 1B shape in bfloat16, with a result file.

    scripts/bench families [FOLDER]

A family's norms, factors and fused matrices should cost nothing: what counts is tokens a second
times bytes of weights that a step reads, next to the same of Llama's shape. Of experts a step reads
those that its tokens are sent to: counted are as many as chance would choose. Checkpoints of random
weights are made in FOLDER, and kept there if it is given.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from benchmarks import results
from quire.cli.main import cli
from tools.random_checkpoint import random_checkpoint

SHAPE: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
#: GPT-J's names of the same.
GPT: dict[str, Any] = {
    "vocab_size": 2048, "n_embd": 2048, "n_layer": 2, "n_head": 32, "n_positions": 2048,
    "rotary_dim": 32,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": SHAPE,
    "Mistral": SHAPE,
    "Ministral": SHAPE,
    "Qwen2": SHAPE,
    "Qwen3": SHAPE,
    "Gemma": SHAPE,
    "Gemma2": SHAPE,
    "Gemma3": SHAPE,
    "Granite": SHAPE | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "Phi": SHAPE,
    "Phi3": SHAPE,
    "SmolLM3": SHAPE,
    "Starcoder2": SHAPE,
    "Glm": SHAPE,
    "Glm4": SHAPE,
    "Cohere": SHAPE,
    "Cohere2": SHAPE,
    "GPTNeoX": SHAPE | {"num_key_value_heads": 32},
    "GPTJ": GPT,
    "Falcon": SHAPE,
    "GPT2": GPT | {"n_inner": 8192},
    "Olmo2": SHAPE,
    "Olmo3": SHAPE,
    "SeedOss": SHAPE,
    "Ernie4_5": SHAPE,
    "Exaone4": SHAPE,
    "StableLm": SHAPE,
}
#: How many experts there are and how many of them a token is sent to, of 2048 values each.
NUM_EXPERTS, NUM_CHOSEN, EXPERT_WIDTH = 8, 4, 2048
EXPERTS: dict[str, dict[str, Any]] = {
    "Mixtral": SHAPE | {"num_local_experts": NUM_EXPERTS, "intermediate_size": EXPERT_WIDTH},
    "Qwen3Moe": SHAPE | {"model_type": "qwen3_moe", "num_experts": NUM_EXPERTS},
    "Olmoe": SHAPE | {"num_experts": NUM_EXPERTS, "intermediate_size": EXPERT_WIDTH},
    "GptOss": SHAPE
    | {
        "model_type": "gpt_oss",
        "num_local_experts": NUM_EXPERTS,
        "intermediate_size": EXPERT_WIDTH,
    },
    "DeepseekV3": SHAPE
    | {
        "model_type": "deepseek_v3",
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": NUM_EXPERTS,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "routed_scaling_factor": 1.0,
    },
}
ROUTING = {"num_experts_per_tok": NUM_CHOSEN, "moe_intermediate_size": EXPERT_WIDTH}
PROMPT_LEN = 32
FLAGS = (
    "--no-quality", "--rounds", "9", "--seconds", "0.1",
    "--prompt-len", str(PROMPT_LEN), "--output-len", "8",
)  # fmt: skip


def measure(folder: Path) -> Path:
    """Make the checkpoints, time them in turn and write the result file."""
    models = []
    experts = {name: config | ROUTING for name, config in EXPERTS.items()}
    for name, config in (FAMILIES | experts).items():
        model = folder / name
        if not (model / "tokenizer_config.json").exists():
            architecture = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
            fields = {"architectures": [architecture], "model_type": name.lower()}
            random_checkpoint(model, fields | config, dtype="bfloat16")
        models.append(str(model))
    report = folder / "families.json"
    arguments = ["bench", "quant", *models, *FLAGS, "--json", str(report)]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    if done.exit_code:
        raise SystemExit(done.output)
    formats = json.loads(report.read_text())["formats"]
    found = {each["label"].split("/")[-1]: _of_llama(each, formats[0]) for each in formats}
    return results.write(results.per_processor("families"), found, flags=FLAGS)


def _of_llama(each: dict[str, Any], llama: dict[str, Any]) -> dict[str, Any]:
    """Return rates next to Llama's, per byte of weights, by the number of sequences."""
    kinds = {"prefill": each["prefill"], **each["decode"]}
    shares = {
        kind: _bytes_read(each, PROMPT_LEN if kind == "prefill" else int(kind))
        / llama["weight_bytes"]
        for kind in kinds
    }
    return {
        "weight_bytes": each["weight_bytes"],
        **{
            kind: {
                part: round(rate["ratio"][part] * shares[kind], 3)
                for part in ("median", "min", "max")
            }
            for kind, rate in kinds.items()
        },
    }


def _bytes_read(each: dict[str, Any], num_tokens: int) -> float:
    """Return the bytes of weights that a step of some tokens reads, experts by chance."""
    total: float = each["weight_bytes"]
    if Path(each["label"]).name in EXPERTS:
        one = 3 * SHAPE["hidden_size"] * EXPERT_WIDTH * 2
        unread = NUM_EXPERTS * (1 - NUM_CHOSEN / NUM_EXPERTS) ** num_tokens
        total -= SHAPE["num_hidden_layers"] * unread * one
    return total


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as made:
            print(measure(Path(made)))
