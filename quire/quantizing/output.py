"""The folder of a quantized checkpoint: shards, configuration, and what is taken over as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quire.checkpoints.checkpoint import INDEX, SINGLE
from quire.checkpoints.config_fields import read_json
from quire.checkpoints.quantized.quantization_config import KEYS
from quire.checkpoints.safetensors_writer import TensorData, write_safetensors
from quire.core.errors import ModelLoadError

#: Most bytes of a file of weights.
SHARD_BYTES = 5_000_000_000
#: Files of a source that hold weights, or that are written anew.
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx"}
OWN = {"config.json", "README.md", INDEX}


def write_weights(
    out: Path,
    tensors: Mapping[str, TensorData],
    on_bytes: Callable[[int], None],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write ``model.safetensors``, or shards and their index.

    Args:
        out: The folder.
        tensors: Tensors by name.
        on_bytes: A function called with the bytes of each tensor.
        shard_bytes: Most bytes of a file.
    """
    shards: list[dict[str, TensorData]] = [{}]
    room = shard_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    count = len(shards)
    names = [SINGLE]
    if count > 1:
        names = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    for file_name, shard in zip(names, shards, strict=True):
        before = 0
        for done in write_safetensors(out / file_name, shard):
            on_bytes(done - before)
            before = done
    if count > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
            "weight_map": {
                name: file for file, shard in zip(names, shards, strict=True) for name in shard
            },
        }
        _write(out / INDEX, json.dumps(index, indent=2) + "\n")


def write_config(
    out: Path, source: Path, quantization: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Write the source's ``config.json`` with ``quantization_config`` and other changes."""
    stored = read_json(source / "config.json")
    values = {key: value for key, value in stored.items() if key not in KEYS} | {**changes}
    values["quantization_config"] = quantization
    _write(out / "config.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def copy_files(out: Path, source: Path) -> None:
    """Copy the tokenizer and whatever else lies with the weights.

    Raises:
        ModelLoadError: A file cannot be read.
    """
    for path in sorted(source.iterdir()):
        if path.name in OWN or path.suffix in WEIGHTS or path.name.startswith("."):
            continue
        if path.name.endswith(".index.json") or not path.is_file():
            continue
        try:
            shutil.copyfile(path, out / path.name)
        except OSError as error:
            raise ModelLoadError(
                f"[quantize] {path} must be readable; got {error.strerror}."
            ) from None


def write_card(out: Path, text: str) -> None:
    """Write the model card."""
    _write(out / "README.md", text)


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, "utf-8")
    part.replace(path)
