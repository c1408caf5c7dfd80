"""Speed of each family next to Llama's, four layers of a 1B shape in bfloat16, with a result file.

    python -m benchmarks.families [FOLDER]

A family's norms, factors and fused matrices should cost nothing: what counts is tokens a second
times bytes of weights that a step reads, next to the same of Llama's shape. Checkpoints of random
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
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
#: GPT-J's names of the same.
GPT: dict[str, Any] = {
    "vocab_size": 2048, "n_embd": 2048, "n_layer": 4, "n_head": 32, "n_positions": 2048,
    "rotary_dim": 32,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": SHAPE,
    "Mistral": SHAPE,
    "Ministral": SHAPE,
    "Qwen2": SHAPE,
    "Qwen3": SHAPE,
    "Gemma": SHAPE,
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
}
FLAGS = (
    "--no-quality", "--rounds", "9", "--seconds", "0.1", "--prompt-len", "32", "--output-len", "8",
)  # fmt: skip


def measure(folder: Path) -> Path:
    """Make the checkpoints, time them in turn and write the result file."""
    models = []
    for name, config in FAMILIES.items():
        model = folder / name
        if not (model / "tokenizer_config.json").exists():
            fields = {"architectures": [f"{name}ForCausalLM"], "model_type": name.lower()}
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
    share = each["weight_bytes"] / llama["weight_bytes"]
    kinds = {"prefill": each["prefill"], **each["decode"]}
    return {
        "weight_bytes": each["weight_bytes"],
        **{
            kind: {part: round(rate["ratio"][part] * share, 3) for part in ("median", "min", "max")}
            for kind, rate in kinds.items()
        },
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as made:
            print(measure(Path(made)))
