"""KV blocks in files: ``FOLDER/FINGERPRINT/HH/HASH.kv``, one for each, named by their content.

A file is written under another name and renamed when it is whole, so the leftovers of a crash or a
full disk are never read as a block. A checksum finds changes by a failing disk or another program.
One server writes a folder, others may read it. The least recently used files are removed when those
of all models together exceed the bound; a file's time of change is that of its last use, also after
a restart.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from quire.core.metrics import Samples
from quire.runner.blocks.tiers.sealed_block import (
    HEAD_BYTES,
    Bytes,
    DamagedBlockError,
    head_of,
    opened,
)
from quire.system.log import get_logger

log = get_logger(__name__)

SUFFIX = ".kv"
UNFINISHED = ".part"
_FOLDERS = re.compile("[0-9a-f]{32}/[0-9a-f]{2}")
_BLOCK = re.compile("[0-9a-f]{64}" + re.escape(SUFFIX))
_PART = re.compile(_BLOCK.pattern + "[.][0-9]+" + re.escape(UNFINISHED))
#: Age in seconds from which unfinished files are taken for leftovers and removed.
UNFINISHED_SECONDS = 60.0
#: Seconds without any writing after a failure.
REST_SECONDS = 10.0
#: Seconds that a lookup waits for the folder's first listing, at most.
LISTING_SECONDS = 30.0


class DiskTier:
    """The files of one folder, of which those of one model are read.

    Args:
        folder: The folder, which is created where it is missing and writable.
        fingerprint: (32 bytes), the model's.
        block_bytes: Bytes of each block.
        max_bytes: Bytes of all files, at most.
        is_writable: Whether files are written and removed; else they are only read.
    """

    label = "disk"
    byte_seconds = 1 / 500e6

    def __init__(
        self,
        folder: Path,
        fingerprint: bytes,
        block_bytes: int,
        max_bytes: int,
        *,
        is_writable: bool = True,
    ) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._own = fingerprint.hex()[:32]
        self._block_bytes = block_bytes
        self._max_bytes = max_bytes
        self.is_writable = is_writable
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by path; least recently used first
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._is_listed = threading.Event()
        self._resumes = 0.0
        self.num_damaged = self.num_failures = 0
        self._is_closed = False
        if is_writable:
            with suppress(OSError):  # the folder is not there yet, or not this user's
                (folder / self._own).chmod(0o700)  # a folder that an older version has created
            threading.Thread(target=self._list, name="quire-kv-disk-list", daemon=True).start()

    def contains(self, block_hash: bytes) -> bool | None:
        """Return whether a block is there; None while the folder is being listed, or only read."""
        if self._path(block_hash) in self._sizes:
            return True
        return False if self._is_listed.is_set() else None

    def look_up(self, block_hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks; files of other servers are looked for each time."""
        if self.is_writable:
            self._is_listed.wait(LISTING_SECONDS)
        for count, block_hash in enumerate(block_hashes):
            path = self._path(block_hash)
            if path not in self._sizes if self.is_writable else not self._exists(path):
                return count
        return len(block_hashes)

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Record a use of blocks, so that they are removed later; their files stay as they are."""
        with self._lock:
            for path in map(self._path, block_hashes):
                if path in self._sizes:
                    self._sizes.move_to_end(path)

    def read(self, block_hash: bytes) -> Bytes | None:
        """Return a block; a file whose content does not match its name is removed."""
        path = self._path(block_hash)
        try:
            frame = self._read_file(path)
            found = opened(frame, self._fingerprint, block_hash, self._block_bytes)
        except FileNotFoundError:
            self._forget(path)
            return None
        except (OSError, DamagedBlockError) as error:
            self.num_damaged += 1
            log.warning("[kv_tiers] %s is not used: %s.", self._folder / path, error)
            self._remove(path)
            return None
        with self._lock:
            if path in self._sizes:
                self._sizes.move_to_end(path)
        if self.is_writable:
            with suppress(OSError):
                os.utime(self._folder / path)
        return found

    def write(self, block_hash: bytes, data: Bytes) -> bool:
        """Keep a block; after a failure nothing is written for a while."""
        path, size = self._path(block_hash), HEAD_BYTES + len(data)
        self._is_listed.wait()
        if path in self._sizes:
            return True
        if time.monotonic() < self._resumes or size > self._max_bytes:
            return False
        self._make_room(size)
        part = self._folder / f"{path}.{os.getpid()}{UNFINISHED}"
        try:
            _make_private(part.parent)
            part.unlink(missing_ok=True)  # a leftover of an earlier process with this id
            with open(part, "xb", buffering=0, opener=_create) as file:
                _write_all(file.fileno(), head_of(self._fingerprint, block_hash, data))
                _write_all(file.fileno(), data.data)
            part.replace(self._folder / path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            self.num_failures += 1
            self._resumes = time.monotonic() + REST_SECONDS
            log.warning("[kv_tiers] %s takes no blocks for a while: %s.", self._folder, error)
            return False
        self._add(path, size)
        return True

    def clear(self) -> None:
        """Remove this model's files, unless they are only read."""
        with self._lock:
            own = [path for path in self._sizes if path.startswith(f"{self._own}/")]
        for path in own:
            self._remove(path)

    def forget(self, block_hash: bytes) -> None:
        """Remove a block's file, unless files are only read."""
        self._remove(self._path(block_hash))

    def samples(self) -> Samples:
        """Return the numbers of blocks, bytes and damaged blocks, by metric stem."""
        return {
            'kv_offload_blocks{tier="disk"}': len(self._sizes),
            'kv_offload_held_bytes{tier="disk"}': self._num_bytes,
            'kv_offload_damaged_blocks{tier="disk"}': self.num_damaged,
        }

    def describe(self) -> str:
        """Return the folder and its content as text, for people."""
        if not self.is_writable:
            return f"disk {self._folder}: only read"
        held = f"{len(self._sizes)} blocks, {self._num_bytes} of {self._max_bytes} bytes"
        return f"disk {self._folder}: {held}"

    def close(self) -> None:
        """End the listing."""
        self._is_closed = True
        if self.is_writable:
            self._is_listed.wait()

    def _path(self, block_hash: bytes) -> str:
        name = block_hash.hex()
        return f"{self._own}/{name[:2]}/{name}{SUFFIX}"

    def _exists(self, path: str) -> bool:
        return os.path.exists(self._folder / path)

    def _read_file(self, path: str) -> Bytes:
        size = HEAD_BYTES + self._block_bytes
        frame = np.empty(size + 1, np.uint8)
        with open(self._folder / path, "rb", buffering=0, opener=_open) as file:
            count = 0
            while count <= size and (more := file.readinto(frame.data[count:])):
                count += more
        return frame[:count]

    def _list(self) -> None:
        """Take in the folder's files, and remove those that no server will finish."""
        try:
            found = sorted(self._files())
        except OSError as error:
            log.warning("[kv_tiers] %s cannot be listed: %s.", self._folder, error)
            found = []
        with self._lock:
            listed = OrderedDict((path, size) for _, path, size in found)
            listed.update(self._sizes)
            self._sizes, self._num_bytes = listed, sum(listed.values())
        self._is_listed.set()
        self._make_room(0)

    def _files(self) -> Iterator[tuple[float, str, int]]:
        """Yield time of use, path and size of every block; files with other names are skipped."""
        for model in _folders(self._folder):
            for part in _folders(model.path):
                folder = f"{model.name}/{part.name}"
                for entry in _files(part.path) if _FOLDERS.fullmatch(folder) else ():
                    if self._is_closed:
                        return
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if _BLOCK.fullmatch(entry.name):
                            yield status.st_mtime, f"{folder}/{entry.name}", status.st_size
                        elif _PART.fullmatch(entry.name) and _is_left_over(status.st_mtime):
                            os.unlink(entry.path)

    def _make_room(self, size: int) -> None:
        while self._num_bytes + size > self._max_bytes:
            with self._lock:
                oldest = next(iter(self._sizes), None)
            if oldest is None:
                return
            self._remove(oldest)

    def _add(self, path: str, size: int) -> None:
        with self._lock:
            self._num_bytes += size - self._sizes.pop(path, 0)
            self._sizes[path] = size

    def _forget(self, path: str) -> None:
        with self._lock:
            self._num_bytes -= self._sizes.pop(path, 0)

    def _remove(self, path: str) -> None:
        self._forget(path)
        if self.is_writable:
            with suppress(OSError):
                os.unlink(self._folder / path)


def _folders(path: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yield the folders in a folder; none where it is no folder, or is removed meanwhile."""
    with suppress(OSError), os.scandir(path) as entries:
        yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))


def _files(path: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files in a folder, as :func:`_folders` does."""
    with suppress(OSError), os.scandir(path) as entries:
        yield from (entry for entry in entries if entry.is_file(follow_symlinks=False))


def _is_left_over(time_of_change: float) -> bool:
    return time_of_change < time.time() - UNFINISHED_SECONDS


def _make_private(folder: Path) -> None:
    """Create a folder, and missing folders above it, for this user alone."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_private(folder.parent)
        _make_private(folder)


def _create(path: str, flags: int) -> int:
    """Open a new file that no other user can read: a prompt could be recovered from its KV."""
    return os.open(path, flags, 0o600)


def _open(path: str, flags: int) -> int:
    """Open a file without waiting, also a pipe, whose other end no process may ever open."""
    return os.open(path, flags | os.O_NONBLOCK)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
