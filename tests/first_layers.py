"""A small part of a real model: its first layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.checkpoints.safetensors_writer import tensor_data, write_safetensors


def first_layers(model: Path, out: Path, num_layers: int) -> None:
    """Write a model with the first layers of another one, which has one file of weights."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("model.safetensors"))
    config = json.loads((model / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "num_hidden_layers": num_layers}))
    file = SafetensorsFile(model / "model.safetensors")
    tensors = {}
    for name, entry in file.entries.items():
        layer = name.removeprefix("model.layers.").partition(".")[0]
        if not layer.isdecimal() or int(layer) < num_layers:
            tensors[name] = tensor_data(file.tensor(name).array, entry.dtype)
    for _ in write_safetensors(out / "model.safetensors", tensors):
        pass
