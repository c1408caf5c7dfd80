"""Write a PEFT folder with a random LoRA adapter of a checkpoint: for tests and benchmarks.

``python -m tools.random_adapter MODEL_FOLDER OUT --rank 16 --seed 1``
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from quire.checkpoints.safetensors_writer import TensorData, tensor_data, write_safetensors
from quire.models.adapters.peft_folder import WEIGHTS
from quire.models.adapters.peft_settings import CONFIG
from quire.models.adapters.places import read_places

TARGETS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("w1", "w2", "w3"),  # of experts, as Mixtral calls them
)


def random_adapter(
    model: Path,
    out: Path,
    *,
    rank: int = 8,
    seed: int = 0,
    dtype: str = "float32",
    targets: Sequence[str] = TARGETS,
    **settings: Any,
) -> Path:
    """Write an adapter whose additions are about as large as the weights of random checkpoints.

    Args:
        model: The checkpoint.
        out: A folder, made if it is not there.
        rank: Of all matrices.
        seed: Other numbers, other adapter.
        dtype: ``float32`` or ``bfloat16``.
        targets: Last parts of the names of modules.
        **settings: Of ``adapter_config.json``, in place of ours.

    Returns:
        ``out``.
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, TensorData] = {}
    for place in read_places(model):
        for module, rows in zip(place.modules, place.rows, strict=True):
            if module.rpartition(".")[2] in targets:
                prefix = f"base_model.model.{module}"
                for half, shape in (("A", (rank, place.columns)), ("B", (rows, rank))):
                    values = rng.normal(0, 0.1, shape).astype(np.float32)
                    tensors[f"{prefix}.lora_{half}.weight"] = _stored(values, dtype)
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": 2 * rank,
        "bias": "none",
        "target_modules": list(targets),
    }
    (out / CONFIG).write_text(json.dumps(config | settings), "utf-8")
    for _ in write_safetensors(out / WEIGHTS, tensors):
        pass
    return out


def _stored(values: np.ndarray, dtype: str) -> TensorData:
    if dtype == "float32":
        return tensor_data(values)
    return tensor_data((values.view(np.uint32) >> 16).astype(np.uint16), "BF16")


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--rank", default=16, help="of all matrices")
@click.option("--seed", default=0, help="other numbers, other adapter")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16")
def main(model: Path, out: Path, rank: int, seed: int, dtype: str) -> None:
    """Write a random adapter of MODEL to OUT."""
    random_adapter(model, out, rank=rank, seed=seed, dtype=dtype)


if __name__ == "__main__":
    main()
