"""Models of the hub: which files of a repository are wanted, and where they are in the cache.

The hub library does the work, so ``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``
and ``HF_TOKEN`` mean what they mean everywhere.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from quire.core.errors import ModelLoadError, QuireError
from quire.models.config_fields import read_json
from quire.models.gguf_choice import choose_default, choose_gguf, gguf_files
from quire.models.hub_download import TIMEOUT, HubFile, fetch_file
from quire.models.manifests import SITE
from quire.models.pull_progress import OnProgress, PullProgress

log = logging.getLogger(__name__)

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
_REFERENCE = re.compile(r"(\w[\w.-]*(?:/[\w.-]+)?)(?::([\w./-]+))?")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of the hub.

    Attributes:
        repository: ``org/name``.
        revision: Branch, tag or commit; None for the main branch.
        tag: Names one of its GGUF files, by the quantization; None for the repository's model.
    """

    repository: str
    revision: str | None = None
    tag: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f" at {self.revision}" if self.revision else "")

    @classmethod
    def parse(cls, model: str, revision: str | None) -> HubReference | None:
        """Read ``org/name``, ``org/name:Q4_K_M`` or either after ``hf.co/``; None if it is none."""
        match = _REFERENCE.fullmatch(SITE.sub("", model))
        if match is None or (match[2] is None and model.endswith(".gguf")):
            return None
        return cls(match[1], revision, None if match[2] == "latest" else match[2])


def find_cached(reference: HubReference, *, weights: bool = True) -> Path | None:
    """Return the folder or GGUF file of ``reference`` if it is in the cache as a whole.

    Which GGUF file is meant without a tag only the hub knows: the cache may hold another.
    """
    if reference.tag is None:
        folder = _snapshot(reference, _patterns(weights))
        return folder if folder is not None and _is_whole(folder, weights) else None
    return _cached_gguf(reference)


def _is_whole(folder: Path, weights: bool) -> bool:
    """Whether a snapshot has all that is read: another program, or a cut, may have left less."""
    needed = WEIGHTS[:1] if weights else TOKENIZER
    if not any(path.is_file() for name in needed for path in folder.glob(name)):
        return False
    index = folder / WEIGHTS[1]
    if not weights or not index.is_file():
        return True
    try:
        shards = read_json(index).get("weight_map")
    except ModelLoadError:  # loading it says what is wrong
        return True
    return not isinstance(shards, dict) or all(
        (folder / str(shard)).is_file() for shard in shards.values()
    )


def _cached_gguf(reference: HubReference) -> Path | None:
    folder = _snapshot(reference, [])
    if folder is None:
        return None
    found = (path for path in folder.rglob("*.gguf") if path.is_file())  # a link may lead nowhere
    names = [path.relative_to(folder).as_posix() for path in found]
    try:
        name = _choose(names, reference)
    except ModelLoadError:  # the hub may have it
        return None
    return None if name is None else folder / name


def download(reference: HubReference, on_progress: OnProgress, *, weights: bool = True) -> Path:
    """Bring ``reference`` into the hub cache and return its folder or GGUF file.

    Only the files Quire reads are fetched, and of those only what the cache lacks.

    Raises:
        ModelLoadError: No such id, revision or file, no access, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    repository, revision = reference.repository, reference.revision
    on_progress(PullProgress("pulling manifest"))
    with hub_errors(str(reference)):
        try:
            info = HfApi().model_info(repository, revision=revision, timeout=TIMEOUT)
        except (HfHubHTTPError, HFValidationError):
            raise
        except Exception as error:
            cached = find_cached(reference, weights=weights) or _cached_gguf(reference)
            if cached is None:
                raise
            log.warning(
                "%s: as it is in the cache; the hub cannot be reached (%s)",
                reference,
                _first_line(error),
            )
            return cached
        names = [file.rfilename for file in info.siblings or ()]
        name = _choose(names, reference)
        if name is not None:
            return fetch_file(HubFile(repository, revision, name), on_progress)
        # Weights come last: a snapshot that has them has the rest.
        for file in sorted(filter(is_read, names), key=lambda name: (_is_weights(name), name)):
            if weights or not _is_weights(file):
                fetch_file(HubFile(repository, revision, file), on_progress)
        # All is there; this checks it and returns the folder.
        patterns = _patterns(weights)
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))


def is_read(name: str) -> bool:
    """Whether a file of a repository of safetensors is one that Quire reads."""
    return any(fnmatch(name, pattern) for pattern in _patterns(weights=True))


def _is_weights(name: str) -> bool:
    return fnmatch(name, WEIGHTS[0])


def _choose(names: list[str], reference: HubReference) -> str | None:
    """Return the GGUF file that is meant, or None for a repository of safetensors."""
    if reference.tag is not None:
        return choose_gguf(names, reference.tag, reference.repository)
    if not gguf_files(names) or any(name.endswith(".safetensors") for name in names):
        return None
    return choose_default(names, reference.repository)


def _snapshot(reference: HubReference, patterns: list[str]) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                reference.repository,
                revision=reference.revision,
                allow_patterns=patterns,
                local_files_only=True,
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _patterns(weights: bool) -> list[str]:
    return [*CONFIGURATION, *TOKENIZER, *(WEIGHTS if weights else ())]


@contextmanager
def hub_errors(reference: str) -> Iterator[None]:
    """Turn the library's errors into one that says what to do."""
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        yield
        return
    except QuireError:
        raise
    except HFValidationError as error:
        reason, advice = str(error), "Give a folder, quire-tiny, or a hub id such as org/name."
    except Exception as error:
        # The errors of the HTTP client come through, and which client it is depends on the version.
        known = isinstance(error, HfHubHTTPError | EntryNotFoundError)
        if known and not isinstance(error, LocalEntryNotFoundError):
            reason, advice = _first_line(error), "Check the id, the revision and HF_TOKEN."
        else:
            reason = f"not in the cache, and the hub cannot be reached ({_first_line(error)})"
            if HF_HUB_OFFLINE:
                reason = "not in the cache, and HF_HUB_OFFLINE forbids the network"
            advice = "Run quire pull where there is a network, or give a folder."
    raise ModelLoadError(
        f"[load] the model must be a folder, quire-tiny, or a hub id; got {reference}: {reason}. "
        f"{advice}"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
