"""Random draft heads in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Tensors = dict[str, np.ndarray]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return values that keep the size of what they are multiplied with."""
    return (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)


def medusa_tensors(
    hidden_size: int, *, num_heads: int = 3, num_layers: int = 2, own_head: int = 0, seed: int = 0
) -> Tensors:
    """Return heads as FasterDecoding names them; ``own_head`` is the size of output matrices."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            tensors[f"{head}.{layer}.linear.weight"] = normal(rng, hidden_size, hidden_size)
            tensors[f"{head}.{layer}.linear.bias"] = normal(rng, hidden_size)
        if own_head:
            tensors[f"{head}.{num_layers}.weight"] = normal(rng, own_head, hidden_size)
    return tensors


def write_head(folder: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    """Write a folder with a head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder
