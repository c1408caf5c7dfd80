"""One file of the hub into its cache: resumed after a cut, bounded, checked, all or nothing.

The hub library keeps nothing of a download whose process ended, bounds no body by the size that was
announced, and compares no hash. So bytes are fetched here; where they lie, their lock and the link
to them are the library's, and other programs find them there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from quire.core.counts import format_bytes
from quire.core.errors import ModelLoadError
from quire.store.pull_progress import OnProgress, PullProgress

#: Seconds that the hub may take to say what a file is.
TIMEOUT = 10.0
#: Attempts that may bring less than :data:`LEAST_BYTES`, one after the other.
MAX_FRUITLESS = 5
#: Bytes that an attempt must bring in each such time: a hub that sends one now and then has no end.
LEAST_BYTES, SLOW_SECONDS = 64 * 2**10, 60.0
RETRY_SECONDS = 1.0
#: Seconds between calls of ``on_progress`` while another process's download is waited for.
LOCK_SECONDS = 1.0
#: Suffix of the name of a partial file; the library's own partial files have it, too.
PARTIAL = ".quire.incomplete"

_FOLDER = "models--"  # how the name of a repository's folder in the hub's cache begins
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,127}")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file that is wanted.

    Attributes:
        repository: ``org/name``.
        revision: Branch, tag or commit; None for the main branch.
        file: The file's path in the repository.
        nbytes, sha256: Size and hash that it must have, where they are known beforehand.
    """

    repository: str
    revision: str | None
    file: str
    nbytes: int | None = None
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.file} of {self.repository}"


class _Cut(Exception):
    """The connection ended, or the hub is busy: it is worth trying again."""


@dataclass(frozen=True, slots=True)
class _Remote:
    """The hub's answer about a file: its address, its blob's name and its size."""

    wanted: HubFile
    url: str
    etag: str
    nbytes: int

    @property
    def sha256(self) -> str | None:
        named = self.etag if _SHA256.fullmatch(self.etag) else None
        return self.wanted.sha256 or named

    def step(self, completed: int) -> PullProgress:
        digest = self.sha256
        status = f"pulling {(digest or self.etag)[:12]}"
        return PullProgress(status, digest and f"sha256:{digest}", completed, self.nbytes)


def fetch_file(wanted: HubFile, on_progress: OnProgress) -> Path:
    """Bring a file into the hub's cache and return its path there.

    A file that is in the cache is checked against the hub's size and hash, and fetched again if it
    differs.

    Raises:
        ModelLoadError: The hub has another file than is wanted, another one arrived, or the file
            cannot be written.
        Exception: Errors of the hub library, where the hub refuses or cannot be reached.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    remote = _ask(wanted)
    on_progress(remote.step(0))
    blobs = _folder(wanted.repository) / "blobs"
    lock = _lock(blobs, remote.etag)
    try:
        blobs.mkdir(parents=True, exist_ok=True)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with _locked(lock, remote, on_progress):
            if not _is_intact(blobs / remote.etag, remote, on_progress):
                _fetch_blob(remote, blobs, on_progress)
    except HfHubHTTPError:  # also an OSError
        raise
    except OSError as error:
        raise ModelLoadError(
            f"[pull] {wanted} must be written to {blobs}; got {error.strerror or error}. What came "
            "is kept: make room and pull again."
        ) from error
    on_progress(remote.step(remote.nbytes))
    _drop_changed_copy(remote)
    return Path(hf_hub_download(wanted.repository, wanted.file, revision=wanted.revision))


def unfinished(repository: str | None = None) -> list[tuple[str, Path]]:
    """Return repository and file of each download that was given up, of one repository or all.

    One that is under way, in any process, is not.
    """
    folder = _folder("*" if repository is None else repository)
    found = sorted(folder.parent.glob(f"{folder.name}/blobs/*{PARTIAL}"))
    found = [path for path in found if not _is_under_way(path)]
    names = (path.parent.parent.name.removeprefix(_FOLDER) for path in found)
    return [(name.replace("--", "/", 1), path) for name, path in zip(names, found, strict=True)]


def cached_file(repository: str, commit: str, file: str) -> Path:
    """Return where the hub's cache has a file of a commit, if it has it.

    As ``huggingface_hub.try_to_load_from_cache``, without the tenth of a second that importing it
    takes: a model's name is looked up at each start.
    """
    return _folder(repository) / "snapshots" / commit / file


def _folder(repository: str) -> Path:
    """Return a repository's folder in the hub's cache; see ``huggingface_hub``'s cache layout."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"{_FOLDER}{repository.replace('/', '--')}"


def _is_under_way(part: Path) -> bool:
    """Whether a process holds the lock of what has arrived so far of a blob."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    lock = _lock(part.parent, part.name.removesuffix(PARTIAL))
    try:
        with WeakFileLock(lock, timeout=0.01):
            return False
    except OSError as error:
        return isinstance(error, TimeoutError)


def _lock(blobs: Path, etag: str) -> Path:
    """Return the library's lock of a blob."""
    return blobs.parent.parent / ".locks" / blobs.parent.name / f"{etag}.lock"


def _ask(wanted: HubFile) -> _Remote:
    """Return the hub's answer about a file.

    Raises:
        ModelLoadError: The answer is unusable, or the hub has another file than the one wanted.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    # It becomes a path in the cache, and a pattern such as *.jinja fits ../x.jinja, too.
    if not {"", ".", ".."}.isdisjoint(wanted.file.split("/")):
        raise ModelLoadError(
            f"[pull] a file of {wanted.repository} must lie in it; got {wanted.file!r:.80}. Do not "
            "trust this repository."
        )
    url = hf_hub_url(wanted.repository, wanted.file, revision=wanted.revision)
    found = get_hf_file_metadata(url, timeout=TIMEOUT)
    etag, nbytes = found.etag or "", found.size
    # It becomes a file's name.
    if not _PLAIN_NAME.fullmatch(etag) or nbytes is None:
        raise ModelLoadError(
            f"[pull] the hub must say the hash and the size of {wanted}; got {etag!r:.80} and "
            f"{nbytes}. Check HF_ENDPOINT."
        )
    remote = _Remote(wanted, url, etag, nbytes)
    if wanted.nbytes not in (None, nbytes):
        raise _another(wanted, f"{wanted.nbytes:,} bytes", f"{nbytes:,}")
    if wanted.sha256 is not None and _SHA256.fullmatch(etag) and etag != wanted.sha256:
        raise _another(wanted, f"SHA-256 {wanted.sha256}", etag)
    return remote


def _another(wanted: HubFile, rule: str, found: str) -> ModelLoadError:
    return ModelLoadError(
        f"[pull] {wanted} must have {rule}; got {found}. Nothing was kept: pull again, and if it "
        "stays so, the file was replaced or is not what it says."
    )


@contextmanager
def _locked(lock: Path, remote: _Remote, on_progress: OnProgress) -> Iterator[None]:
    """Hold the library's lock of a blob, so that no other process fetches it at the same time."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    with ExitStack() as held:
        while True:
            try:
                held.enter_context(WeakFileLock(lock, timeout=LOCK_SECONDS))
                break
            except TimeoutError:  # another process pulls the same file
                on_progress(remote.step(0))
        yield


def _is_intact(blob: Path, remote: _Remote, on_progress: OnProgress) -> bool:
    """Whether the blob is there and as the hub has it; another one is deleted."""
    if not blob.is_file():
        return False
    intact = blob.stat().st_size == remote.nbytes
    if intact and remote.sha256 is not None:
        on_progress(PullProgress("verifying sha256 digest"))
        with blob.open("rb") as file:
            intact = hashlib.file_digest(file, "sha256").hexdigest() == remote.sha256
    if not intact:
        blob.unlink()
    return intact


def _drop_changed_copy(remote: _Remote) -> None:
    """Delete what stands in a snapshot in the link's place and is another file than the blob."""
    from huggingface_hub import try_to_load_from_cache

    wanted = remote.wanted
    found = try_to_load_from_cache(wanted.repository, wanted.file, revision=wanted.revision)
    if not isinstance(found, str) or Path(found).is_symlink():
        return
    if Path(found).stat().st_size != remote.nbytes:
        Path(found).unlink()


def _fetch_blob(remote: _Remote, blobs: Path, on_progress: OnProgress) -> None:
    """Write a blob, starting from what an earlier attempt left.

    Raises:
        ModelLoadError: The bytes are not those that were announced; they are deleted.
        OSError: The blob cannot be written; the bytes that arrived are kept.
    """
    part = blobs / f"{remote.etag}{PARTIAL}"
    with part.open("a+b") as file:
        digest = hashlib.sha256()
        file.seek(0)
        while chunk := file.read(_READ):
            digest.update(chunk)
        if file.tell() > remote.nbytes:
            file.seek(0)
            file.truncate()
            digest = hashlib.sha256()
        missing, free = remote.nbytes - file.tell(), shutil.disk_usage(blobs).free
        if missing > free:
            left = f"{format_bytes(missing)} to come and {format_bytes(free)} free"
            raise OSError(errno.ENOSPC, left)
        try:
            _receive(remote, file, digest, on_progress)
            on_progress(PullProgress("verifying sha256 digest"))
            found = digest.hexdigest()
            if remote.sha256 not in (None, found):
                raise _another(remote.wanted, f"SHA-256 {remote.sha256}", found)
        except _Surplus:
            part.unlink()
            raise _another(
                remote.wanted, f"{remote.nbytes:,} bytes, as was announced", "more"
            ) from None
        except ModelLoadError:
            if file.tell() >= remote.nbytes:
                part.unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
    part.replace(blobs / remote.etag)


class _Surplus(Exception):
    """The body is longer than the size that was announced."""


def _receive(remote: _Remote, file: BinaryIO, digest: Any, on_progress: OnProgress) -> None:
    """Append to ``file`` until it has the announced size; ``digest`` is of all that is in it."""
    fruitless = 0
    while (begin := file.tell()) < remote.nbytes:
        since, before = time.monotonic(), begin
        try:
            with closing(_read(remote, begin)) as chunks:
                for chunk in chunks:
                    if file.tell() + len(chunk) > remote.nbytes:
                        raise _Surplus
                    file.write(chunk)
                    digest.update(chunk)
                    on_progress(remote.step(file.tell()))
                    if time.monotonic() - since >= SLOW_SECONDS:
                        _check_rate(remote, file.tell() - before, file.tell())
                        since, before = time.monotonic(), file.tell()
            if file.tell() < remote.nbytes:
                raise _Cut("the connection ended early")
        except _Cut as error:
            file.flush()
            fruitless = 0 if file.tell() - begin >= LEAST_BYTES else fruitless + 1
            if fruitless > MAX_FRUITLESS:
                raise ModelLoadError(
                    f"[pull] {remote.wanted} must come from the hub; got {begin:,} of "
                    f"{remote.nbytes:,} bytes, the last {MAX_FRUITLESS} times less than "
                    f"{format_bytes(LEAST_BYTES)} ({error}). What came is kept: pull again later."
                ) from error
            on_progress(remote.step(file.tell()))
            time.sleep(RETRY_SECONDS)


def _check_rate(remote: _Remote, nbytes: int, total: int) -> None:
    """Stop waiting when fewer than :data:`LEAST_BYTES` arrived in :data:`SLOW_SECONDS`.

    Args:
        remote: The file that is fetched.
        nbytes: Bytes that arrived in that time.
        total: Bytes of the file that have arrived so far.
    """
    if nbytes < LEAST_BYTES and total < remote.nbytes:
        raise ModelLoadError(
            f"[pull] {remote.wanted} must come at {format_bytes(LEAST_BYTES)} in "
            f"{SLOW_SECONDS:g} s or faster; got {nbytes:,} bytes. What came is kept: pull again "
            "later."
        )


def _read(remote: _Remote, begin: int) -> Generator[bytes, None, None]:
    """Yield a file's bytes from ``begin`` on.

    Raises:
        _Cut: The connection ended or the hub is busy.
        ModelLoadError: The answer is not that part of the file.
        Exception: Errors of the hub library, where the hub refuses.
    """
    from huggingface_hub import get_session
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
    )

    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    try:
        # The client follows redirects, a bounded number of them, and sends the token to no other
        # host.
        with get_session().stream(
            "GET", remote.url, headers=headers, timeout=HF_HUB_DOWNLOAD_TIMEOUT
        ) as response:
            if response.status_code in (408, 429, 500, 502, 503, 504):
                raise _Cut(f"HTTP status {response.status_code}")
            hf_raise_for_status(response)
            surplus = begin - _first_byte(response, remote, begin)
            # Bytes as they come: one that sends few and slowly can still be given up.
            for chunk in response.iter_raw():
                yield chunk[surplus:]
                surplus = max(0, surplus - len(chunk))
    except (ModelLoadError, _Cut):
        raise
    except Exception as error:
        # Which HTTP client it is depends on the library's version, its errors' names do not.
        if type(error).__name__ in _TRANSIENT:
            raise _Cut(f"{type(error).__name__}: {error}") from error
        raise


_TRANSIENT = frozenset(
    "ConnectError ConnectTimeout ReadError ReadTimeout WriteError WriteTimeout PoolTimeout "
    "RemoteProtocolError CloseError ProxyError".split()
)


def _first_byte(response: Any, remote: _Remote, begin: int) -> int:
    """Return where in the file the answer begins: at ``begin``, or at 0 if it knows no ranges.

    Raises:
        ModelLoadError: The answer is of another file, or not as it is on the disk.
    """
    url = response.url
    if remote.url.startswith("https:") and url.scheme != "https":
        raise ModelLoadError(
            f"[pull] {remote.wanted} must come over https; got a redirect to {url.scheme}://"
            f"{url.host}. Check HF_ENDPOINT."
        )
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    first, nbytes = (int(found[1]), int(found[2])) if found else (0, remote.nbytes)
    encoding = response.headers.get("Content-Encoding", "identity")
    if first not in (0, begin) or nbytes != remote.nbytes or encoding != "identity":
        raise ModelLoadError(
            f"[pull] {remote.wanted} must come from byte {begin:,} of {remote.nbytes:,} on; got "
            f"{first:,} of {nbytes:,}, encoding {encoding}. Check HF_ENDPOINT and pull again."
        )
    return first
