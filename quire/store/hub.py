"""A model argument to a local path: a folder, a GGUF file, a named model, or a hub id."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.checkpoints.embedded import ASSETS, EMBEDDED, EMBEDDED_DRAFT, LISTED
from quire.checkpoints.gguf.gguf_file import is_gguf
from quire.core.errors import ModelLoadError, QuireError
from quire.models.adapters.peft_settings import CONFIG as ADAPTER_CONFIG
from quire.store.gguf_choice import choose_gguf, gguf_files
from quire.store.hub_files import HubReference, download, find_cached, is_read
from quire.store.manifests import (
    Manifest,
    Preset,
    StoredFile,
    all_manifests,
    canonical_name,
    find_made,
    plain_name,
    read_manifest,
    write_manifest,
)
from quire.store.model_details import known_details
from quire.store.named_models import named_model, near_names
from quire.store.pull_progress import OnProgress, PullProgress, terminal_progress

log = logging.getLogger(__name__)

#: Of a folder that are looked through for a model.
_MAX_ENTRIES = 1000


def resolve_model(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the path of ``model``, downloading it when it is nowhere on this machine.

    Args:
        model: A name that was made with ``quire create`` or ``quire copy``, ``quire-tiny``, a name
            of the catalogue such as ``qwen3:0.6b``, a folder, a GGUF file, a hub id such as
            ``org/name`` or, for one of its GGUF files, ``org/name:Q4_K_M``. ``hf.co/`` may stand
            before an id.
        revision: Branch, tag or commit of a hub id.
        weights: Whether the weights are needed, or only configuration and tokenizer.

    Raises:
        ModelLoadError: No such folder or hub id exists, or the hub cannot be reached.
    """
    found = find_model(model, revision, weights=weights)
    return found if found is not None else download_model(model, revision, weights=weights)


def download_model(
    model: str,
    revision: str | None = None,
    *,
    weights: bool = True,
    on_progress: OnProgress | None = None,
    must_fit: bool = False,
) -> Path:
    """Bring ``model`` into the cache, and return its folder or GGUF file.

    Unlike :func:`resolve_model`, this asks the hub for the newest state of a branch, and checks
    what is in the cache.

    Args:
        model, revision, weights: The same as in :func:`resolve_model`.
        on_progress: Function called at each step; None for a bar on a terminal.
        must_fit: Whether a model is refused that this machine never has the memory for.

    Raises:
        ModelLoadError: No such hub id, revision or file exists, access is denied, the hub cannot
            be reached, or it is known beforehand that the model cannot be loaded.
        PullCancelled: ``on_progress`` raised it.
    """
    if on_progress is None:
        with terminal_progress() as shown:
            return download_model(
                model, revision, weights=weights, on_progress=shown, must_fit=must_fit
            )
    model, revision = stands_for(model, revision)
    if model in (*LISTED, EMBEDDED_DRAFT):
        return _embedded(model)
    named = named_model(model)
    path = None if named is not None else _local_model(model)
    if path is not None:
        return path
    is_asked = True
    if named is not None:
        if named.find() is None:
            named.check_fit(on_progress, must_fit=must_fit)
        path = named.fetch(on_progress)
    else:
        with _near_names(model):
            path, is_asked = download(
                _hub_reference(model, revision), on_progress, weights=weights, must_fit=must_fit,
                kept=_kept_file(model, revision),
            )  # fmt: skip
    if weights and is_asked:
        on_progress(PullProgress("writing manifest"))
        _note_pulled(model, revision, path)
    return path


def find_model(model: str, revision: str | None = None, *, weights: bool = True) -> Path | None:
    """Return the path of ``model`` if it is on this machine; nothing is fetched.

    Raises:
        ModelLoadError: The text cannot name a model.
    """
    model, revision = stands_for(model, revision)
    if model in (*LISTED, EMBEDDED_DRAFT):
        return _embedded(model)
    named = named_model(model)
    if named is not None:
        return named.find()
    path = _local_model(model)
    if path is None:
        path = find_cached(_hub_reference(model, revision), weights=weights)
    return path or _noted_gguf(model, revision)


@contextmanager
def _near_names(model: str) -> Iterator[None]:
    """Turn the error of an unknown short name into one that lists near names."""
    try:
        yield
    except ModelLoadError as error:
        if "/" in model:
            raise
        raise ModelLoadError(
            f"[load] {model} must be a folder, a hub id such as org/name, or a name that quire "
            f"list --catalogue shows; got none of these.{near_models(model)}"
        ) from error


def near_models(name: str) -> str:
    """Return `` Did you mean X?`` of models here and in the catalogue, empty where none is near."""
    try:
        made = [known for known, _ in all_manifests()]
    except RuntimeError:  # no home
        made = []
    return near_names(name, [*LISTED, *made])


def _noted_gguf(model: str, revision: str | None) -> Path | None:
    """Return the GGUF file that was chosen when a repository was pulled, if it is still there."""
    try:
        noted = read_manifest(model)
    except RuntimeError:  # no home: nothing was noted there
        return None
    if noted is None or noted.parent or noted.revision != revision or len(noted.files) != 1:
        return None
    file = noted.files[0].path
    return file if file.suffix.lower() == ".gguf" and file.is_file() else None


def pinned(model: str, revision: str | None) -> str:
    """Return a model as what :func:`find_model` finds of it now, whatever is chosen later."""
    kept = _kept_file(model, revision)
    exact = model if kept is None else f"{plain_name(model)}:{kept}"
    return exact if HubReference.parse(exact, revision) is not None else model


def _kept_file(model: str, revision: str | None) -> str | None:
    """Return the path in its repository of what :func:`_noted_gguf` finds."""
    file = _noted_gguf(model, revision)
    parts = file.parts if file is not None else ()
    if "snapshots" not in parts or ":" in plain_name(model):
        return None
    return "/".join(parts[parts.index("snapshots") + 2 :])


def model_files(path: Path) -> tuple[StoredFile, ...]:
    """Return the files of a model that is there."""
    if path.is_file():
        files = [path]
    else:
        files = [file for file in sorted(path.iterdir()) if file.is_file() and is_read(file.name)]
    return tuple(StoredFile(file.absolute(), file.stat().st_size, _digest(file)) for file in files)


def _digest(file: Path) -> str | None:
    name = file.resolve().name
    return name if re.fullmatch(r"[0-9a-f]{64}", name) else None


def _note_pulled(model: str, revision: str | None, path: Path) -> None:
    """Write down that a model was pulled: it is there all the same where that cannot be written."""
    name = canonical_name(model)
    if name is None:
        log.warning("%s is in the cache, but cannot be a name of the store", model)
        return
    try:
        manifest = Manifest(
            name=name, model=name, revision=revision, files=model_files(path),
            details=known_details(path),
        )  # fmt: skip
        write_manifest(manifest)
    except (QuireError, OSError, RuntimeError) as error:
        log.warning("%s is in the cache, but not noted in the store: %s", name, error)


def stands_for(model: str, revision: str | None = None) -> tuple[str, str | None]:
    """Return the model and revision that a name made here stands for, or both as they are.

    Raises:
        ModelLoadError: A revision is given for a name that has none.
    """
    made = find_made(model) if model not in LISTED else None
    named = made is None and model not in LISTED and named_model(model)
    if made is not None and revision is not None:
        raise ModelLoadError(
            f"[load] {model} is a name for {made.model} and has no revisions; got {revision!r}. "
            "Create it with the revision."
        )
    if named and revision is not None:
        raise ModelLoadError(
            f"[load] {model} is one file of one commit and has no revisions; got {revision!r}. "
            f"Name the repository: {named.repository}."
        )
    return (made.model, made.revision) if made is not None else (model, revision)


def hub_repository(model: str) -> str | None:
    """Return the repository that a model is fetched from, or None if it is not of the hub."""
    model, _ = stands_for(model)
    named = named_model(model)
    if named is not None:
        return named.repository
    reference = HubReference.parse(model, None)
    return reference.repository if reference is not None and model not in LISTED else None


def model_preset(model: str) -> Preset:
    """Return what goes with a model of the catalogue or one made by ``quire create``."""
    made = find_made(model) if model not in LISTED else None
    named = named_model(made.model if made is not None else model)
    base = Preset(sampling=named.sampling) if named is not None else Preset()
    return made.preset.over(base) if made is not None else base


def served_name(model: str) -> str:
    """Return what clients call ``model``: the last part of a path without ``.gguf``, else all."""
    try:
        path = Path(model).expanduser()
        is_path = path.exists() and model not in LISTED
    except (OSError, RuntimeError):  # no path; loading it will say why
        return model
    if not is_path or find_made(model) is not None or named_model(model) is not None:
        return model
    # The name of a link, not of what it leads to.
    return Path(os.path.abspath(path)).name.removesuffix(".gguf") or model


def _hub_reference(model: str, revision: str | None) -> HubReference:
    reference = HubReference.parse(model, revision)
    if reference is None:
        raise ModelLoadError(
            f"[load] the model must be a folder or GGUF file that exists, {EMBEDDED}, a name that "
            "quire list --catalogue shows, or a hub id such as org/name or org/name:Q4_K_M; got "
            f"{model!r}."
        )
    return reference


def _embedded(model: str) -> Path:
    folder = ASSETS / model
    if not (folder / "config.json").exists():
        raise ModelLoadError(
            f"[load] {model} must be in the package; got no {folder}. Reinstall Quire."
        )
    return folder


def _local_model(model: str) -> Path | None:
    """Return the folder or file that ``model`` names, or None if there is nothing of that name."""
    try:
        path = Path(model).expanduser()
        is_folder, is_there = path.is_dir(), path.exists()
    # A name that is too long, a folder that may not be looked into, ~ of an unknown user.
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
        remedy = f" Name its folder, {path.parent}." if _holds_model(path.parent) else ""
        raise ModelLoadError(
            f"[load] the model must be a folder or a GGUF file; got {path}.{remedy}"
        )
    return path


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _model_of_folder(folder: Path) -> Path:
    """Return a folder of safetensors as it is, else the GGUF file in it if there is one."""
    names = [path.name for path in folder.iterdir()]
    if ADAPTER_CONFIG in names and "config.json" not in names:
        raise ModelLoadError(
            f"[load] {folder} is an adapter, not a model. Load its base with --enable-lora "
            f"--lora-modules NAME={folder}, or add it to its base with quire merge."
        )
    if not gguf_files(names) or any(name.endswith(".safetensors") for name in names):
        inner = [] if "config.json" in names else _inner_models(folder)
        if inner:
            raise ModelLoadError(
                f"[load] {folder} must hold config.json; got none, but in {inner[0]}. Name that "
                "folder."
            )
        return folder
    return folder / choose_gguf(names, None, str(folder))


def _inner_models(folder: Path) -> list[Path]:
    """Return folders below one that hold a model: of an archive, or of the cache of the hub."""
    near = itertools.islice(folder.iterdir(), _MAX_ENTRIES)
    inner = [path for path in near if path.is_dir()]
    snapshots = folder / "snapshots"
    if snapshots.is_dir():
        inner += itertools.islice(snapshots.iterdir(), _MAX_ENTRIES)
    return sorted(filter(_holds_model, inner))
