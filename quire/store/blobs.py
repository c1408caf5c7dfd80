"""Files that clients uploaded to make models of, by their SHA-256; no model is known here."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError, ModelLoadError
from quire.system import env

#: Most bytes of one file: the largest shards of checkpoints have a few dozen GiB.
MAX_BLOB_BYTES = 128 * 2**30
#: Seconds after which a file that no model uses goes.
UNUSED_SECONDS = 24 * 3600
#: Of temporary files that a killed process left.
_STALE_SECONDS = 3600
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_FILE_NAME = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)


def blob_folder() -> Path:
    """Return the folder of the files."""
    return env.cache_folder() / "blobs"


def upload_folder() -> Path:
    """Return where folders of links to the files are, each a model of several files."""
    return env.cache_folder() / "uploads"


def read_digest(text: str) -> str:
    """Return the digits of ``sha256:DIGITS``, in lower case.

    Raises:
        ConfigError: The text has another form.
    """
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"[digest] invalid digest format: it must be sha256: and 64 hexadecimal digits; got "
            f"{text!r:.90}."
        )
    return found[1].lower()


def find_blob(digest: str) -> Path | None:
    """Return a file that is there as a whole; ``digest`` as of :func:`read_digest`."""
    path = blob_folder() / digest
    return path if path.is_file() else None


def remove_unused(used: set[Path]) -> None:
    """Delete files older than a day that no model uses, and what killed processes left.

    Args:
        used: Files of all models, links resolved.
    """
    now = time.time()
    for path in blob_folder().glob("*"):
        stale = _STALE_SECONDS if path.name.endswith(".part") else UNUSED_SECONDS
        with contextlib.suppress(OSError):
            if path.resolve() not in used and path.stat().st_mtime < now - stale:
                path.unlink()


class BlobWriter:
    """Context in which an upload is written; the file is visible when :meth:`finish` returns.

    Args:
        digest: The digits that :func:`read_digest` returns.
        nbytes: Bytes of the upload, where they are known.

    Raises:
        ModelLoadError: The disk has no room, or the file cannot be written.
    """

    def __init__(self, digest: str, nbytes: int | None = None) -> None:
        self._digest = digest
        self._hash = hashlib.sha256()
        self._nbytes = 0
        folder = blob_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
            if nbytes is not None and nbytes > free:
                left = f"{format_bytes(nbytes)} to come and {format_bytes(free)} free"
                raise OSError(errno.ENOSPC, left)
            number, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
        except OSError as error:
            raise _unwritable(error) from error
        self._part = Path(part)
        self._file = os.fdopen(number, "wb")

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # a full disk; it goes anyhow
            self._file.close()
        with contextlib.suppress(OSError):  # it has its name, unless something went wrong
            self._part.unlink()

    def write(self, data: bytes) -> None:
        """Add the next bytes.

        Raises:
            ConfigError: The file would be larger than :data:`MAX_BLOB_BYTES`.
            ModelLoadError: The bytes cannot be written.
        """
        self._nbytes += len(data)
        if self._nbytes > MAX_BLOB_BYTES:
            most = format_bytes(MAX_BLOB_BYTES)
            raise ConfigError(f"[blob] must be at most {most}; got more.")
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise _unwritable(error) from error

    def finish(self) -> Path:
        """Give the file its name, and return its path.

        Raises:
            ConfigError: The file is another one than was announced.
            ModelLoadError: The file cannot be written.
        """
        found = self._hash.hexdigest()
        if found != self._digest:
            raise ConfigError(
                f'[blob] digest mismatch, expected "sha256:{self._digest}", got "sha256:{found}"'
            )
        path = blob_folder() / found
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._part, path)
        except OSError as error:
            raise _unwritable(error) from error
        return path


def model_of_blobs(files: Mapping[str, str]) -> Path:
    """Return the GGUF file or the folder of safetensors that uploaded files make up.

    Args:
        files: Digests by the files' names.

    Raises:
        ConfigError: A name or digest is wrong, or the files make up no model.
        ModelLoadError: The folder cannot be written.
    """
    blobs = {name: _uploaded(name, text) for name, text in files.items()}
    ggufs = [name for name in blobs if name.endswith(".gguf")]
    if ggufs and len(blobs) > 1:
        raise ConfigError(
            f"[files] a GGUF file must come alone: parts and projectors are not read; got "
            f"{', '.join(sorted(blobs))[:200]}."
        )
    if ggufs:
        return blobs[ggufs[0]]
    if "config.json" not in blobs or not any(n.endswith(".safetensors") for n in blobs):
        raise ConfigError(
            "[files] must be one .gguf file, or config.json with .safetensors and the tokenizer's "
            f"files; got {', '.join(sorted(blobs))[:200] or 'nothing'}."
        )
    return _folder_of(blobs)


def _uploaded(name: str, digest: str) -> Path:
    if not _FILE_NAME.fullmatch(name):
        raise ConfigError(
            f"[files] file path must be relative and a name without folders; got {name!r:.80}."
        )
    path = find_blob(read_digest(digest))
    if path is None:
        raise ConfigError(
            f"[files] {name} must be uploaded to /api/blobs/{digest} before; got no such file."
        )
    return path


def _folder_of(blobs: Mapping[str, Path]) -> Path:
    """Return a folder of links; the same files make the same one."""
    content = repr(sorted((name, path.name) for name, path in blobs.items()))
    folder = upload_folder() / hashlib.sha256(content.encode()).hexdigest()[:32]
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".", suffix=".part", dir=folder.parent))
        try:
            for name, path in blobs.items():
                (part / name).symlink_to(path.absolute())
            try:
                part.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise _unwritable(error) from error
    return folder


def _unwritable(error: OSError) -> ModelLoadError:
    return ModelLoadError(
        f"[blob] {blob_folder()} must be writable; got {error.strerror or error}. Make room, or "
        "set QUIRE_CACHE to another folder."
    )
