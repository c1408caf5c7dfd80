"""A model argument to a local path: a folder, a GGUF file, quire-tiny, or a hub id.

The hub library does the work, so ``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``
and ``HF_TOKEN`` mean what they mean everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from quire.core.errors import ModelLoadError
from quire.models.gguf_file import is_gguf

EMBEDDED = "quire-tiny"
ASSETS = Path(__file__).parent.parent / "assets"

CONFIGURATION = ("config.json", "generation_config.json")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "*.jinja",
)
#: Not ``consolidated*.safetensors``, the same weights once more in their maker's layout.
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")


def resolve_model(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the path of ``model``, downloading it when it is nowhere on this machine.

    Args:
        model: A folder, a GGUF file, ``quire-tiny``, or a hub id such as ``org/name``.
        revision: Branch, tag or commit of a hub id.
        weights: Whether the weights are needed, or only configuration and tokenizer.

    Raises:
        ModelLoadError: There is no such folder or hub id, or the hub cannot be reached.
    """
    folder = _local_folder(model)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=_patterns(weights),
                local_files_only=True,
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return download_model(model, revision, weights=weights)
    # A cache filled by another program may hold the configuration alone.
    if weights and not any(cached.glob(WEIGHTS[0])):
        return download_model(model, revision)
    return cached


def download_model(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Bring ``model`` into the hub cache, showing progress, and return its folder.

    Only the files Quire reads are fetched. A local path and ``quire-tiny`` are returned as they
    are.

    Raises:
        ModelLoadError: No such hub id or revision, no access, or the hub cannot be reached.
    """
    folder = _local_folder(model)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=_patterns(weights)))
    except HFValidationError as error:
        reason, advice = str(error), "Give a folder, quire-tiny, or a hub id such as org/name."
    except LocalEntryNotFoundError as error:
        reason = f"not in the cache, and the hub cannot be reached ({_first_line(error)})"
        if HF_HUB_OFFLINE:
            reason = "not in the cache, and HF_HUB_OFFLINE forbids the network"
        advice = "Run quire pull where there is a network, or give a folder."
    # The errors of the HTTP client come through, and which client it is depends on the version.
    except Exception as error:
        reason = _first_line(error)
        advice = "Check the id, the revision and HF_TOKEN."
    at = f" at {revision}" if revision else ""
    raise ModelLoadError(
        f"[load] the model must be a folder, {EMBEDDED}, or a hub id; got {model}{at}: {reason}. "
        f"{advice}"
    )


def _local_folder(model: str) -> Path | None:
    if model == EMBEDDED:
        folder = ASSETS / EMBEDDED
        if not (folder / "config.json").exists():
            raise ModelLoadError(
                f"[load] {EMBEDDED} must be in the package; got no {folder}. Reinstall Quire."
            )
        return folder
    try:
        path = Path(model).expanduser()
        is_folder, is_there = path.is_dir(), path.exists()
    # A name that is too long, a folder that may not be looked into, ~ of a user nobody knows.
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ModelLoadError(
            f"[load] the model must be a path or hub id; got {model!r:.80}: {reason}."
        ) from None
    if model and is_folder:
        return path
    if model and is_there:
        if is_gguf(path):
            return path
        raise ModelLoadError(f"[load] the model must be a folder or a GGUF file; got {path}.")
    is_file_name = model.endswith(".gguf")
    if is_file_name or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model) or model[0] in ".~":
        raise ModelLoadError(
            f"[load] the model must be a folder or GGUF file that exists, {EMBEDDED}, or a hub id "
            f"such as org/name; got {model!r}."
        )
    return None


def _patterns(weights: bool) -> list[str]:
    return [*CONFIGURATION, *TOKENIZER, *(WEIGHTS if weights else ())]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
