"""The store of models: what was pulled or made here, by name; it loads and serves none of them."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from quire.checkpoints.embedded import LISTED
from quire.checkpoints.file_state import FileState, file_state
from quire.checkpoints.gguf.gguf_file import is_gguf
from quire.core.errors import ConfigError, ModelLoadError, QuireError
from quire.core.suggestions import did_you_mean
from quire.models.config.config_reader import read_model_config
from quire.store.blobs import blob_folder, model_of_blobs, remove_unused, upload_folder
from quire.store.hub import (
    download_model,
    find_model,
    hub_repository,
    model_files,
    near_models,
    pinned,
    stands_for,
)
from quire.store.hub_download import unfinished
from quire.store.manifests import (
    Manifest,
    Preset,
    StoredFile,
    all_manifests,
    canonical_name,
    manifest_state,
    plain_name,
    read_manifest,
    remove_manifest,
    write_manifest,
)
from quire.store.model_details import ModelDetails, known_details
from quire.store.named_models import NamedModel, catalogue, named_model
from quire.store.pull_progress import OnProgress, PullProgress
from quire.system import env

#: The parent of a model whose files were uploaded.
UPLOADED = "upload"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A name of the store, and the present state of its files.

    Attributes:
        manifest: The manifest of the name.
        path: Folder or GGUF file to load; None unless all of it is on this machine.
        files: Files of the model that are on this machine.
        problem: Sentence on what is missing or changed; empty if nothing is.
    """

    manifest: Manifest
    path: Path | None = None
    files: tuple[StoredFile, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """The name, in the letters that it was first written in."""
        return self.manifest.name

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(file.nbytes for file in self.files)

    @property
    def preset(self) -> Preset:
        """The settings that go with it, the makers' sampling defaults included."""
        named = named_model(self.manifest.model)
        return self.manifest.preset.over(Preset(sampling=named.sampling if named else {}))

    @property
    def details(self) -> ModelDetails:
        """The model's details, from its files where the manifest has none."""
        noted = self.manifest.details
        return noted if noted.architecture else known_details(self.path)

    @property
    def digest(self) -> str:
        """SHA-256 of what it is, in hexadecimal; a copy under another name has the same."""
        files = sorted((file.digest or file.path.name, file.nbytes) for file in self.files)
        what = (self.manifest.model, self.manifest.revision, asdict(self.manifest.preset), files)
        return hashlib.sha256(repr(what).encode()).hexdigest()

    def state(self) -> tuple[FileState, FileState]:
        """Return what changes when the name or its files do; cheap enough for every request."""
        return manifest_state(self.name), None if self.path is None else file_state(self.path)


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of :meth:`Store.remove`.

    Attributes:
        name: The name that was removed.
        freed_bytes: Bytes freed on the disk.
        shared_with: Other names that use the same files, which therefore stay.
    """

    name: str
    freed_bytes: int = 0
    shared_with: tuple[str, ...] = ()


class Store:
    """The names of models on this machine; every method may be called from any thread.

    Manifests lie in ``store`` of the cache folder, the models' files in the hub's cache, shared
    with other programs, or wherever they were. Nothing is kept in memory, so several processes may
    use the store at once.
    """

    def list(self) -> list[StoredModel]:
        """Return all names, those inside the package first, then the newest.

        Models of the catalogue count whose file is there without a note of a pull: an older
        version brought it, or another program.
        """
        found = []
        for name, manifest in all_manifests():
            if isinstance(manifest, ModelLoadError):
                named = Manifest(name=name, model="", modified=_EPOCH)
                found.append(StoredModel(manifest=named, problem=str(manifest)))
            else:
                found.append(_look(manifest))
        found += _unnoted(found)
        found.sort(key=lambda model: model.manifest.modified, reverse=True)
        return [*map(_embedded, LISTED), *found]

    def find(self, name: str) -> StoredModel | None:
        """Return a name's model, or None if there is no such name.

        A model of the catalogue or the hub that another program brought into the cache is found.

        Raises:
            ModelLoadError: The name's manifest is damaged.
        """
        if name in LISTED:
            return _embedded(name)
        manifest = read_manifest(name)
        if manifest is not None:
            return _look(manifest)
        plain = canonical_name(name)
        if plain is None or (named_model(plain) is None and Path(plain).exists()):
            return None
        path = _find_quietly(plain)
        return (
            None
            if path is None
            else _look(Manifest(name=plain, model=plain, modified=_changed(path)))
        )

    def look_at(self, model: str) -> StoredModel | None:
        """Return a folder or GGUF file as a model without a name, or None if it is neither.

        Raises:
            ModelLoadError: The text cannot name a model.
        """
        path = Path(model).expanduser()
        if not path.exists():
            return None
        return _look(Manifest(name=model, model=model, modified=_changed(path)))

    def pull(
        self,
        name: str,
        revision: str | None = None,
        on_progress: OnProgress | None = None,
        *,
        must_fit: bool = False,
    ) -> Path:
        """Bring a model into the cache, note it, and return its folder or GGUF file.

        Args:
            name: A model argument of :func:`quire.store.hub.resolve_model`; of a name made here,
                the model that it stands for is pulled.
            revision: Branch, tag or commit of a hub id.
            on_progress: Function called at each step; None for a bar on a terminal. It ends the
                pull by raising :class:`~quire.store.pull_progress.PullCancelled`.
            must_fit: Whether a model is refused that this machine never has the memory for.

        Raises:
            ModelLoadError: The model cannot be fetched or written. Nothing of it is visible, and
                the next pull resumes where this one ended.
        """
        path = download_model(name, revision, on_progress=on_progress, must_fit=must_fit)
        if on_progress is not None:
            on_progress(PullProgress("success"))
        return path

    def create(self, name: str, base: str, preset: Preset, revision: str | None = None) -> None:
        """Make a name for a model with settings of its own; one made before is replaced.

        Args:
            name: The new name.
            base: Model to start from; the settings of a name made here are inherited.
            preset: Settings that win over the base's.
            revision: Branch, tag or commit of a hub id.

        Raises:
            ConfigError: The name cannot be given.
            ModelLoadError: The base does not exist, or the store cannot be written.
        """
        plain = _new_name(name)
        model, revision = _absolute(*stands_for(base, revision))
        path = find_model(model, revision)  # also refuses what cannot be a model
        if path is None and named_model(model) is None and "/" not in model:
            raise ModelLoadError(
                f"[create] the base must be a model; got {base!r}.{near_models(base)} Pull "
                "it first, or give a name that quire list --catalogue shows, a hub id or a path."
            )
        made = read_manifest(base)
        inherited = made.preset if made is not None else Preset()
        if path is not None and named_model(model) is None:
            model = pinned(model, revision)
        write_manifest(
            Manifest(
                name=plain, model=model, revision=revision, parent=base,
                preset=preset.over(inherited), details=known_details(path),
            )
        )  # fmt: skip

    def create_from_files(self, name: str, files: Mapping[str, str], preset: Preset) -> None:
        """Make a name for a model whose files were uploaded; one made before is replaced.

        Args:
            name: The new name.
            files: Digest of each file, by name; see :func:`quire.store.blobs.model_of_blobs`.
            preset: Settings that go with the model.

        Raises:
            ConfigError: The name cannot be given, or the files make up no model.
            ModelLoadError: The model is of a kind that is not supported, or cannot be written.
        """
        plain, path = _new_name(name), model_of_blobs(files)
        if path.is_file() and not is_gguf(path):
            raise ConfigError("[files] supplied file was not in GGUF format.")
        read_model_config(path)
        write_manifest(
            Manifest(
                name=plain, model=str(path), parent=UPLOADED, preset=preset,
                files=model_files(path), details=known_details(path),
            )
        )  # fmt: skip

    def remove_unused_blobs(self) -> None:
        """Delete uploaded files that have been no model's for a day."""
        remove_unused(set().union(*map(_files_of, self.list())))

    def copy(self, source: str, name: str) -> None:
        """Give a model one more name; its files are shared.

        Raises:
            ConfigError: The name cannot be given.
            ModelLoadError: The model does not exist, or the store cannot be written.
        """
        self.create(name, source, Preset())

    def remove(self, name: str) -> Removed:
        """Remove a name, and its files from the caches unless another name uses them.

        The partial files of a pull that was given up are removed. Files outside the hub's cache and
        Quire's stay.

        Raises:
            ConfigError: The name does not exist, or it is the model inside the package.
        """
        if name in LISTED:
            raise ConfigError(f"[rm] {name} is part of the package and stays; got {name}.")
        try:
            model = self.find(name)
        except ModelLoadError:  # damaged: what it was of is unknown
            remove_manifest(name)
            return Removed(name)
        left = _unfinished(name) if model is None or model.path is None else 0
        if model is None and left:
            return Removed(name, left)
        if model is None:
            meant = did_you_mean(name, [one.name for one in self.list()])
            raise ConfigError(
                f"[rm] the model must be one that quire list shows; got {name!r}.{meant} Folders "
                "and files of your own are yours to delete."
            )
        remove_manifest(model.name)
        mine = _files_of(model) | {file.path.resolve() for file in model.manifest.files}
        sharing: dict[str, set[Path]] = {}
        removed, stood_for = _catalogued(model), plain_name(model.manifest.model)
        for other in self.list()[1:]:
            # What was removed is still of the catalogue, and its file still there.
            if removed is not None and removed is _catalogued(other):
                continue
            # Which file a repository's name meant was written in the manifest.
            is_same = plain_name(other.manifest.model) == stood_for
            if used := mine if is_same else _files_of(other) & mine:
                sharing[other.name] = used
        freed = _delete(mine.difference(*sharing.values()))
        if model.path is not None and model.path.parent == upload_folder() and not sharing:
            shutil.rmtree(model.path, ignore_errors=True)  # its links lead nowhere now
        return Removed(model.name, left + freed, tuple(sharing))


_EPOCH = datetime.fromtimestamp(0, UTC)


def _embedded(name: str) -> StoredModel:
    path = find_model(name)
    assert path is not None
    manifest = Manifest(name=name, model=name, details=known_details(path), modified=_changed(path))
    return StoredModel(manifest=manifest, path=path, files=model_files(path))


def _unnoted(noted: Iterable[StoredModel]) -> Iterator[StoredModel]:
    """Yield the models of the catalogue whose files are there and that ``noted`` does not hold."""
    names = {model.name.lower() for model in noted}
    names |= {found.name for model in noted if (found := _catalogued(model)) is not None}
    for name, named in catalogue().items():
        path = None if name in names else named.find()
        if path is not None:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                yield _look(Manifest(name=name, model=name, modified=_changed(path)))


def _catalogued(model: StoredModel) -> NamedModel | None:
    """Return what a name is in the catalogue, or None if it is not of it, or made from it."""
    return None if model.manifest.parent else named_model(model.manifest.model)


def _look(manifest: Manifest) -> StoredModel:
    """Compare a manifest with what is on the disk."""
    try:
        path = find_model(manifest.model, manifest.revision)
        files = () if path is None else model_files(path)
    except (QuireError, OSError) as error:  # also: removed while it is looked at
        return StoredModel(manifest=manifest, problem=str(error))
    if path is None:
        problem = f"not on this machine: quire pull {manifest.name}"
        return StoredModel(manifest=manifest, problem=problem)
    problem = next((found for file in manifest.files if (found := _change(file))), "")
    return StoredModel(manifest=manifest, path=path, files=files, problem=problem)


def _files_of(model: StoredModel) -> set[Path]:
    """Return a model's files, no links; of an uploaded folder also those that loading skips."""
    files = [file.path for file in model.files]
    if model.path is not None and model.path.parent == upload_folder():
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            files += model.path.iterdir()
    return {path.resolve() for path in files}


def _change(file: StoredFile) -> str:
    """Return what happened to a file since it was pulled, empty if nothing did."""
    try:
        nbytes = file.path.stat().st_size
    except OSError:
        return f"{file.path} is missing: pull it again"
    return "" if nbytes == file.nbytes else f"{file.path} was changed: pull it again"


def _unfinished(name: str) -> int:
    """Delete what pulls of a model left that were given up; return the bytes freed."""
    repository = hub_repository(name)
    if repository is None:
        return 0
    return sum(_unlink(path) for _, path in unfinished(repository))


def _find_quietly(name: str) -> Path | None:
    try:
        return find_model(name)
    except QuireError:
        return None


def _changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)


def _new_name(name: str) -> str:
    plain = canonical_name(name)
    if plain is None:
        raise ConfigError(
            "[create] a name must be of letters, digits, '_', '-' and '.', with '/' and one ':' "
            f"between its parts; got {name!r:.80}."
        )
    if plain.lower() in LISTED or named_model(plain) is not None:
        raise ConfigError(f"[create] {plain} is a name of the catalogue. Choose another.")
    found = read_manifest(plain)
    if found is not None and not found.parent:
        raise ConfigError(f"[create] {plain} is a model that was pulled. Choose another name.")
    return found.name if found is not None else plain


def _absolute(model: str, revision: str | None) -> tuple[str, str | None]:
    """Return what a model is called from any working directory."""
    if model in LISTED or named_model(model) is not None:
        return model, revision
    path = Path(model).expanduser()
    return (str(path.absolute()) if path.exists() else model), revision


def _delete(files: Iterable[Path]) -> int:
    """Delete files of the hub's cache, with the links to them, and of ours.

    Args:
        files: Paths of the files themselves, not of links.

    Returns:
        The bytes freed.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    hub, freed = Path(HF_HUB_CACHE).resolve(), 0
    ours = {(env.cache_folder() / "models").resolve(), blob_folder().resolve()}
    for path in files:
        parts = path.relative_to(hub).parts if path.is_relative_to(hub) else ("",)
        if parts[0].startswith("models--"):
            repository = hub / parts[0]
            for link in repository.glob("snapshots/*/**/*"):
                if link.is_symlink() and link.resolve() == path:
                    link.unlink(missing_ok=True)
            freed += _unlink(path)
        elif path.parent in ours:
            freed += _unlink(path)
    return freed


def _unlink(path: Path) -> int:
    """Delete a file, if it is there, and return its size."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
