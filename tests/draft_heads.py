"""Random draft heads in the published layouts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import family_names
from quire.models.weight_map import WeightMap

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


def expert_module_tensors(folder: Path) -> Tensors:
    """Return an MTP module of one more layer with experts, for a target of DeepSeek's layout."""
    config, rng = read_model_config(folder), np.random.default_rng(8)
    assert config.moe is not None
    layer = f"model.layers.{config.num_layers}."
    names = replace(family_names(config), layer=layer)
    one = replace(config, num_layers=1, moe=replace(config.moe, dense_layers=()))
    shapes = WeightMap(one, names).layer_shapes(0)
    size = config.hidden_size
    norms = ("enorm", "hnorm", "shared_head.norm")
    shapes |= {f"{layer}{name}.weight": (size,) for name in norms}
    shapes[f"{layer}eh_proj.weight"] = (size, 2 * size)
    for table in ("embed_tokens", "shared_head.head"):
        shapes[f"{layer}{table}.weight"] = (config.vocab_size, size)
    return {
        name: normal(rng, *shape) + (len(shape) == 1 and name.endswith("norm.weight"))
        for name, shape in shapes.items()
    }


def write_target(plain: Path, folder: Path, tensors: Tensors) -> Path:
    """Write the checkpoint ``plain`` with further tensors."""
    shutil.copytree(plain, folder)
    stored = load_file(folder / "model.safetensors")
    save_file(stored | tensors, folder / "model.safetensors")
    return folder
