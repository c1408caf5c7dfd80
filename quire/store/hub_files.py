"""Models of the hub: which files of a repository are wanted, and where they are in the cache.

The hub library does the work, so ``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``
and ``HF_TOKEN`` mean what they mean everywhere.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from quire.checkpoints.checkpoint import AUTO_GPTQ, INDEX
from quire.checkpoints.config_fields import read_json
from quire.checkpoints.gguf.gguf_names import GGUF_FAMILIES
from quire.checkpoints.quantized.quantization_config import SETTINGS_FILES
from quire.core.errors import ModelLoadError, QuireError, UnsupportedArchitectureError
from quire.models.config.config_reader import read_model_config
from quire.store.gguf_choice import (
    ChosenGguf,
    check_readable,
    choose_fitting,
    choose_gguf,
    gguf_files,
)
from quire.store.hub_download import HubFile, fetch_file
from quire.store.hub_listing import fetch_listing
from quire.store.likely_fit import check_fit, free_room
from quire.store.manifests import SITE
from quire.store.pull_progress import OnProgress, PullProgress
from quire.system.regular_files import TABLE_BYTES

log = logging.getLogger(__name__)

CONFIGURATION = ("config.json", "generation_config.json", *SETTINGS_FILES)
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
WEIGHTS = ("model*.safetensors", AUTO_GPTQ)
_REFERENCE = re.compile(r"(\w[\w.-]*(?:/[\w.-]+)?)(?::(\w[\w./-]*))?")
#: Ends the address of a repository's page in a browser.
_PAGE = re.compile(r"/(?:tree/main/?)?$")


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
        """Read ``org/name``, ``org/name:Q4_K_M`` or either after ``hf.co/``; else None."""
        site = SITE.match(model)
        name = model if site is None else _PAGE.sub("", model[site.end() :])
        match = _REFERENCE.fullmatch(name)
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
    needed = WEIGHTS if weights else TOKENIZER
    if not any(path.is_file() for name in needed for path in folder.glob(name)):
        return False
    index = folder / INDEX
    if not weights or not index.is_file():
        return True
    try:
        shards = read_json(index, TABLE_BYTES).get("weight_map")
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
        chosen = _choose(dict.fromkeys(names), reference)
    except ModelLoadError:  # the hub may have it
        return None
    return None if chosen is None else folder / chosen.name


def download(
    reference: HubReference,
    on_progress: OnProgress,
    *,
    weights: bool = True,
    kept: str | None = None,
    must_fit: bool = False,
) -> tuple[Path, bool]:
    """Bring ``reference`` into the hub cache and return its folder or GGUF file.

    Only the files Quire reads are fetched, and of those only what the cache lacks.

    Args:
        reference: The repository, revision and file that are wanted.
        on_progress: Function called at each step.
        weights: Whether the weights are needed, or only configuration and tokenizer.
        kept: The GGUF file that was chosen at an earlier time; it is taken again.
        must_fit: Whether a model is refused that this machine can never load.

    Returns:
        The path, and whether the hub said which file it is; otherwise it is the cache's.

    Raises:
        ModelLoadError: No such id, revision or file exists, access is denied, the hub cannot be
            reached, or the model cannot be loaded.
    """
    repository, revision = reference.repository, reference.revision
    on_progress(PullProgress("pulling manifest"))
    with hub_errors(str(reference)):
        found = _ask(reference, weights)
        if isinstance(found, Path):
            return found, False
        chosen = _choose_offered(found, reference, kept)
        if chosen is not None:
            if chosen.reason:
                on_progress(PullProgress(chosen.reason))
            else:
                nbytes = found.sizes[chosen.name] or 0
                check_fit(str(reference), nbytes, on_progress, must_fit=must_fit)
            return fetch_file(HubFile(repository, revision, chosen.name), on_progress), True
        # Weights come last: a snapshot that has them has the rest.
        files = sorted(filter(is_read, found.sizes), key=lambda name: (_is_weights(name), name))
        if weights:
            nbytes = sum(found.sizes[name] or 0 for name in files)
            check_fit(str(reference), nbytes, on_progress, must_fit=must_fit)
        for file in files:
            if not _is_weights(file) and (found.sizes[file] or 0) > TABLE_BYTES:
                raise ModelLoadError(
                    f"[pull] {file} of {repository} must have <= {TABLE_BYTES >> 20} MiB; got "
                    f"{found.sizes[file]:,} bytes. Do not trust this repository."
                )
            if weights or not _is_weights(file):
                path = fetch_file(HubFile(repository, revision, file), on_progress)
                if weights and file == CONFIGURATION[0]:
                    _check_architecture(path.parent)
        folder = _snapshot(reference, _patterns(weights))
        if folder is None:
            raise ModelLoadError(
                f"[load] the repository must have files of a model; got none in {reference}. "
                "Give another one."
            )
        return folder, True


def _check_architecture(folder: Path) -> None:
    """Refuse what cannot be loaded, before its weights are fetched.

    Raises:
        UnsupportedArchitectureError: The configuration asks for an option that is not implemented.
    """
    try:
        read_model_config(folder)
    except UnsupportedArchitectureError:
        raise
    except ModelLoadError as error:  # loading it will say so, too
        log.debug("%s", error)


@dataclass(frozen=True, slots=True)
class HubOffer:
    """The files of a repository, as the hub lists them.

    Attributes:
        sizes: Bytes of each file; None where the hub does not say.
        architecture: Architecture of its GGUF files; empty if the hub does not say.
    """

    sizes: Mapping[str, int | None]
    architecture: str = ""


def ask_offer(reference: HubReference) -> HubOffer:
    """Return what the hub has now.

    Raises:
        ModelLoadError: No such id or revision, no access, or the hub cannot be reached.
    """
    with hub_errors(str(reference)):
        return _offer(reference)


def _offer(reference: HubReference) -> HubOffer:
    listing = fetch_listing(reference.repository, reference.revision)
    sizes = {file["rfilename"]: _size(file.get("size")) for file in listing["siblings"]}
    gguf = listing.get("gguf")
    architecture = gguf.get("architecture") if isinstance(gguf, dict) else None
    return HubOffer(sizes, architecture if isinstance(architecture, str) else "")


def _size(told: object) -> int | None:
    return told if isinstance(told, int) and told >= 0 else None


def _ask(reference: HubReference, weights: bool) -> HubOffer | Path:
    """Return what the hub has, or what the cache has where the hub cannot be reached."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return _offer(reference)
    except (HfHubHTTPError, HFValidationError, ModelLoadError):
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


def _choose_offered(
    offer: HubOffer, reference: HubReference, kept: str | None
) -> ChosenGguf | None:
    """Return the GGUF file that is meant, or None for a repository of safetensors.

    Raises:
        ModelLoadError: No file is meant, or it cannot be loaded.
    """
    if kept in offer.sizes and kept is not None:
        return ChosenGguf(kept)
    chosen = _choose(offer.sizes, reference)
    if chosen is None:
        return None
    check_readable(chosen.name, reference.repository)
    known = {family.architecture for family in GGUF_FAMILIES.values()}
    # A projector of images may be the file the hub looked at.
    if offer.architecture not in ("", "clip", *known):
        raise UnsupportedArchitectureError(
            f"[load] the architecture must be one of {', '.join(sorted(known))}; got "
            f"{offer.architecture}, as the hub says of {reference.repository}. Nothing was fetched."
        )
    return chosen


def is_read(name: str) -> bool:
    """Whether a file of a repository of safetensors is one that Quire reads."""
    return any(fnmatch(name, pattern) for pattern in _patterns(weights=True))


def _is_weights(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in WEIGHTS)


def _choose(sizes: Mapping[str, int | None], reference: HubReference) -> ChosenGguf | None:
    """Return the GGUF file that is meant, or None for a repository of safetensors."""
    if reference.tag is not None:
        return ChosenGguf(choose_gguf(sizes, reference.tag, reference.repository))
    if not gguf_files(sizes) or any(name.endswith(".safetensors") for name in sizes):
        return None
    return choose_fitting(sizes, reference.repository, free_room())


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
    return [*CONFIGURATION, *TOKENIZER, *((*WEIGHTS, INDEX) if weights else ())]


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
