"""The folder of a model whose floats a command reads, which a GGUF file does not have."""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import ConfigError
from quire.store.hub import resolve_model, stands_for
from quire.store.named_models import named_model


def resolve_float_folder(model: str, where: str, name: str) -> Path:
    """Return the folder of a checkpoint, downloading it when it is nowhere on this machine.

    Args:
        model: A model argument of :func:`~quire.store.hub.resolve_model`.
        where, name: The command and its argument, for errors.

    Raises:
        ConfigError: The model is a file.
        ModelLoadError: The model cannot be found; see :func:`~quire.store.hub.resolve_model`.
    """
    known = named_model(stands_for(model)[0])
    folder = None if known is not None else resolve_model(model)
    if folder is not None and not folder.is_file():
        return folder
    advice = "" if known is None else f" Its floats are {known.floats}."
    raise ConfigError(
        f"[{where}] {name} must be a folder of safetensors; got file {folder or model}.{advice}"
    )
