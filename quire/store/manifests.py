"""The store's manifest of each name: a small TOML file, written all or nothing.

Rules of names follow Ollama's: ``NAME`` is ``NAME:latest`` and ``library/NAME``, and case does not
count.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from quire.checkpoints.file_state import FileState, file_state
from quire.core.errors import ConfigError, ModelLoadError
from quire.core.sampling_params import SamplingParams
from quire.store.model_details import ModelDetails
from quire.system import env
from quire.system.regular_files import read_regular_text

#: The tag of a name that says none.
LATEST = ":latest"
#: Of the manifests below; another one is refused, not guessed at.
FORMAT = 1
#: Sampling settings that a preset may have, in the names of ``SamplingParams``.
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "repeat_last_n", "max_tokens", "seed", "stop",
)  # fmt: skip
#: Of the messages of a preset.
ROLES = ("user", "assistant")
#: What an id may have before it: programs and pages of the hub show ids so.
SITE = re.compile(r"^(?:(?:https?://)?(?:hf\.co|huggingface\.co)/|hf://)", re.IGNORECASE)
#: Characters of a name as a file's name, where a slash takes three.
MAX_NAME = 200
#: Seconds after which a temporary file is one that a killed process left.
STALE_SECONDS = 3600

_PART = r"\w[\w.-]{0,127}"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*(?::{_PART}(?:/{_PART})*)?", re.ASCII)
#: Before a name these say nothing of the model.
_PLACE = re.compile(rf"{SITE.pattern}|^(?:registry\.ollama\.ai/)?(?:library/)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings that go with a model wherever it is loaded.

    Attributes:
        system: System message of a conversation that has none.
        template: Jinja source of the chat template used instead of the model's own.
        sampling: Defaults, as keywords of :class:`SamplingParams`.
        messages: Role and content of the messages that begin each conversation, after its system
            message.
    """

    system: str | None = None
    template: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()

    def over(self, base: Preset) -> Preset:
        """Return this preset, with what it leaves open taken from ``base``."""
        return Preset(
            base.system if self.system is None else self.system,
            base.template if self.template is None else self.template,
            {**base.sampling, **self.sampling},
            self.messages or base.messages,
        )


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a model, where it was when it was pulled.

    Attributes:
        path: Absolute path of the file itself, or of a link in a snapshot of the hub's cache.
        nbytes: Size of the file.
        digest: SHA-256 of the file, where the hub's cache tells it.
    """

    path: Path
    nbytes: int
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One name.

    Attributes:
        name: The name, in the letters that it was first written in.
        model: The model it stands for: ``quire-tiny``, a name of the catalogue, a hub id or a path.
        revision: Branch, tag or commit of a hub id.
        parent: The name it was made from; empty for a model that was pulled.
        preset: Settings that go with the model.
        files: Files of a model that was pulled.
        details: Details of the model, read from its files when it was pulled or made.
        modified: Time at which it was pulled or made.
    """

    name: str
    model: str
    revision: str | None = None
    parent: str = ""
    preset: Preset = Preset()
    files: tuple[StoredFile, ...] = ()
    details: ModelDetails = ModelDetails()
    modified: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))


def plain_name(name: str) -> str:
    """Return a name without what changes nothing: a known place before it, ``:latest`` after it."""
    plain = _PLACE.sub("", name.strip(), count=1)
    return plain[: -len(LATEST)] if plain.lower().endswith(LATEST) else plain


def canonical_name(name: str) -> str | None:
    """Return the one spelling of a name but for its case, or None if it cannot be a name."""
    plain = plain_name(name)
    if len(plain) > MAX_NAME:
        return None
    return plain if _NAME.fullmatch(plain) and len(quote(plain, safe="")) <= MAX_NAME else None


def store_folder() -> Path:
    """Return the folder of the manifests."""
    return env.cache_folder() / "store"


def read_manifest(name: str) -> Manifest | None:
    """Return the manifest of a name, or None if there is none.

    Raises:
        ModelLoadError: The manifest is damaged.
    """
    plain = canonical_name(name)
    if plain is None:
        return None
    try:
        return _read(_path(plain))
    except OSError:  # also a folder that may not be read, or is none
        return None


def manifest_state(name: str) -> FileState:
    """Return what changes when a name's manifest does; None where there is none."""
    plain = canonical_name(name)
    return None if plain is None else file_state(_path(plain))


def find_made(name: str) -> Manifest | None:
    """Return the manifest of a name that was made by ``create`` or ``copy``, else None.

    Of any other model the name itself says all.

    Raises:
        ModelLoadError: The manifest is damaged.
    """
    try:
        found = read_manifest(name)
    except RuntimeError:  # no home: nothing was made there
        return None
    return found if found is not None and found.parent else None


def all_manifests() -> Iterator[tuple[str, Manifest | ModelLoadError]]:
    """Yield each name in lower case and its manifest, or what is wrong with that."""
    for path in sorted(store_folder().glob("*.toml")):
        name = unquote(path.stem)
        try:
            yield name, _read(path)
        except ModelLoadError as error:
            yield name, error
        except OSError:  # removed meanwhile
            continue


def write_manifest(manifest: Manifest) -> None:
    """Write a manifest; a reader sees the old one or the new one.

    Raises:
        ConfigError: A value of it has no place in TOML: null, NaN, half a character.
        ModelLoadError: The manifest cannot be written; the old one stays.
    """
    path, text = _path(manifest.name), _text(manifest)
    try:
        tomllib.loads(text)
        data = text.encode()
    except ValueError as error:
        raise ConfigError(
            f"[create] {manifest.name} must be of text and finite numbers; got {error}."
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        number, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            with contextlib.suppress(OSError):  # it has its name, unless something went wrong
                os.unlink(part)
    except OSError as error:
        raise ModelLoadError(
            f"[store] {path} must be writable; got {error.strerror or error}. Make room, or set "
            "QUIRE_CACHE to another folder."
        ) from error


def remove_manifest(name: str) -> bool:
    """Remove a name, damaged or not; return whether it was there."""
    plain = canonical_name(name)
    if plain is None:
        return False
    try:
        _path(plain).unlink()
    except FileNotFoundError:
        return False
    return True


def check_sampling(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return sampling defaults as keywords.

    Raises:
        ConfigError: A name is unknown, or a value out of range.
    """
    unknown = ", ".join(sorted(set(values) - set(SAMPLING)))
    if unknown:
        raise ConfigError(f"[create] {where} may hold {', '.join(SAMPLING)}; got {unknown}.")
    try:
        SamplingParams(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"[create] {where}: {error}") from error
    return dict(values)


def check_messages(values: Sequence[Any], where: str) -> tuple[Mapping[str, str], ...]:
    """Return the messages of a preset.

    Raises:
        ConfigError: One is more than a role and a text.
    """
    for index, value in enumerate(values):
        is_message = isinstance(value, Mapping) and set(value) == {"role", "content"}
        if not (is_message and value["role"] in ROLES and isinstance(value["content"], str)):
            raise ConfigError(
                f"[create] {where}[{index}] must have a role ({', '.join(ROLES)}) and a text as "
                f"content, nothing else; got {value!r:.80}."
            )
    return tuple(values)


def _path(name: str) -> Path:
    return store_folder() / f"{quote(name.lower(), safe='')}.toml"


def _read(path: Path) -> Manifest:
    try:
        values = tomllib.loads(read_regular_text(path))
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']!r}")
        preset = values.get("preset", {})
        modified = values["modified"]
        if not isinstance(modified, datetime) or modified.tzinfo is None:
            raise ValueError(f"modified {modified!r}")
        return Manifest(
            name=str(values["name"]),
            model=str(values["model"]),
            revision=values.get("revision"),
            parent=str(values.get("parent", "")),
            preset=Preset(
                preset.get("system"),
                preset.get("template"),
                check_sampling(preset.get("sampling", {}), "sampling"),
                check_messages(preset.get("messages", ()), "messages"),
            ),
            files=tuple(
                StoredFile(Path(file["path"]), int(file["bytes"]), file.get("sha256"))
                for file in values.get("files", ())
            ),
            details=ModelDetails(**values.get("details", {})),
            modified=modified,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            f"[store] {path} must be a manifest; got {type(error).__name__}: {error}. Pull or "
            "create the model again, or remove it with quire rm."
        ) from error


def _text(manifest: Manifest) -> str:
    lines = ["# Written by quire; see docs/models.md.", f"format = {FORMAT}"]
    for key in ("name", "model", "revision", "parent"):
        value = getattr(manifest, key)
        if value:
            lines.append(f"{key} = {_value(value)}")
    lines.append(f"modified = {manifest.modified.isoformat()}")
    preset = manifest.preset
    lines += ["", "[preset]"]
    lines += [
        f"{key} = {_value(value)}"
        for key, value in (("system", preset.system), ("template", preset.template))
        if value is not None
    ]
    lines += ["", "[preset.sampling]"]
    lines += [f"{key} = {_value(value)}" for key, value in preset.sampling.items()]
    for message in preset.messages:
        lines += ["", "[[preset.messages]]"]
        lines += [f"{key} = {_value(value)}" for key, value in message.items()]
    lines += ["", "[details]"]
    lines += [f"{key} = {_value(value)}" for key, value in asdict(manifest.details).items()]
    for file in manifest.files:
        lines += ["", "[[files]]", f"path = {_value(str(file.path))}", f"bytes = {file.nbytes}"]
        lines += [f"sha256 = {_value(file.digest)}"] if file.digest else []
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return a TOML value; JSON is one, but for a character that TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _sweep(folder: Path) -> None:
    """Delete temporary files that killed processes left."""
    for path in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - STALE_SECONDS:
                path.unlink()
