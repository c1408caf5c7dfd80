"""The files of a checkpoint, copied to where they are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from quire.checkpoints.checkpoint import INDEX, Checkpoint
from quire.core.errors import ConfigError, ModelLoadError
from quire.quantizing.output import write_weights
from quire.quantizing.quantization_run import in_file_order
from quire.quantizing.resumable_run import stored_data


def save_folder(
    where: str,
    folder: Path,
    out: Path,
    shard_bytes: int | None = None,
) -> None:
    """Copy the files of a checkpoint.

    Args:
        where: The function, for messages.
        folder: The checkpoint.
        out: A new or an empty folder.
        shard_bytes: Most bytes of a file of weights; None for files as they are.

    Raises:
        ConfigError: ``out`` holds something, or the checkpoint is one file.
    """
    if folder.is_file():
        raise ConfigError(f"[{where}] a model of one file is not copied; got {folder}. Copy it.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"[{where}] the folder must be new or empty; got {out}.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.iterdir()):
            is_left = shard_bytes is not None and _is_weights(path)
            if path.is_file() and not path.name.startswith(".") and not is_left:
                shutil.copyfile(path, out / path.name)
        if shard_bytes is not None:
            stored = Checkpoint(folder)
            tensors = {name: stored_data(stored, name) for name in sorted(stored.names)}
            write_weights(out, in_file_order(tensors), lambda count: None, shard_bytes)
    except OSError as error:
        raise ModelLoadError(f"[{where}] {out} must be writable; got {error.strerror}.") from None


def _is_weights(path: Path) -> bool:
    return path.suffix == ".safetensors" or path.name == INDEX
