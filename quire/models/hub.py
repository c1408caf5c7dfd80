"""A model argument to a local path: a folder, a GGUF file, a named model, or a hub id."""

from __future__ import annotations

import os
from pathlib import Path

from quire.core.errors import ModelLoadError
from quire.models.gguf_choice import choose_gguf, gguf_files
from quire.models.gguf_file import is_gguf
from quire.models.hub_files import HubReference, download, find_cached
from quire.models.named_models import NAMED_MODELS

EMBEDDED = "quire-tiny"
ASSETS = Path(__file__).parent.parent / "assets"


def resolve_model(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the path of ``model``, downloading it when it is nowhere on this machine.

    Args:
        model: A folder, a GGUF file, ``quire-tiny``, ``smollm2``, a hub id such as ``org/name`` or,
            for one of its GGUF files, ``org/name:Q4_K_M``. ``hf.co/`` may stand before an id.
        revision: Branch, tag or commit of a hub id.
        weights: Whether the weights are needed, or only configuration and tokenizer.

    Raises:
        ModelLoadError: There is no such folder or hub id, or the hub cannot be reached.
    """
    return _resolve(model, revision, weights, look_first=True)


def download_model(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Bring ``model`` into the cache, showing progress, and return its folder or GGUF file.

    As :func:`resolve_model`, but the hub is asked for the newest state of a branch.

    Raises:
        ModelLoadError: No such hub id, revision or file, no access, or the hub cannot be reached.
    """
    return _resolve(model, revision, weights, look_first=False)


def served_name(model: str) -> str:
    """Return what clients call ``model``: the last part of a path without ``.gguf``, else all."""
    try:
        path = Path(model).expanduser()
        is_path = model != EMBEDDED and model not in NAMED_MODELS and path.exists()
    except (OSError, RuntimeError):  # no path; loading it will say why
        return model
    if not is_path:
        return model
    # The name of a link, not of what it leads to.
    return Path(os.path.abspath(path)).name.removesuffix(".gguf") or model


def _resolve(model: str, revision: str | None, weights: bool, *, look_first: bool) -> Path:
    if model == EMBEDDED:
        return _embedded()
    if model in NAMED_MODELS:
        named = NAMED_MODELS[model]
        if revision is not None:
            raise ModelLoadError(
                f"[load] {model} is one file of one commit and has no revisions; got {revision!r}. "
                f"Name the repository: {named.repository}."
            )
        return (named.find() if look_first else None) or named.fetch()
    path = _local_model(model)
    if path is not None:
        return path
    reference = HubReference.parse(model, revision)
    if reference is None:
        raise ModelLoadError(
            f"[load] the model must be a folder or GGUF file that exists, {EMBEDDED}, "
            f"{', '.join(NAMED_MODELS)}, or a hub id such as org/name or org/name:Q4_K_M; got "
            f"{model!r}."
        )
    cached = find_cached(reference, weights=weights) if look_first else None
    return cached if cached is not None else download(reference, weights=weights)


def _embedded() -> Path:
    folder = ASSETS / EMBEDDED
    if not (folder / "config.json").exists():
        raise ModelLoadError(
            f"[load] {EMBEDDED} must be in the package; got no {folder}. Reinstall Quire."
        )
    return folder


def _local_model(model: str) -> Path | None:
    """Return the folder or file that ``model`` names, or None if there is nothing of that name."""
    try:
        path = Path(model).expanduser()
        is_folder, is_there = path.is_dir(), path.exists()
    # A name that is too long, a folder that may not be looked into, ~ of a user nobody knows.
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ModelLoadError(
            f"[load] the model must be a path or hub id; got {model!r:.80}: {reason}."
        ) from None
    if not model or not is_there:
        return None
    if is_folder:
        return _model_of_folder(path)
    if not is_gguf(path):
        raise ModelLoadError(f"[load] the model must be a folder or a GGUF file; got {path}.")
    return path


def _model_of_folder(folder: Path) -> Path:
    """Return a folder of safetensors as it is, else the GGUF file in it if there is one."""
    names = [path.name for path in folder.iterdir()]
    if not gguf_files(names) or any(name.endswith(".safetensors") for name in names):
        return folder
    return folder / choose_gguf(names, None, str(folder))
