"""Files that strangers may have made: opened without a wait, and read no further than a bound.

A FIFO or a device in the place of a file would have a thread wait for ever, or take all memory.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

#: Most bytes of a file of settings: the largest published ones list labels, rules or modules.
SETTINGS_BYTES = 16 * 2**20
#: Most bytes of an index of tensors, a vocabulary or a matrix of importance.
TABLE_BYTES = 128 * 2**20


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file to read its bytes.

    Raises:
        OSError: The file cannot be opened, or is a FIFO, a device, a folder or a socket.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file but a folder, FIFO or device", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, max_bytes: int = SETTINGS_BYTES) -> bytes:
    """Return a file's content.

    Raises:
        OSError: The file is refused by :func:`open_regular`, or has more bytes.
    """
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes >> 20} MiB", str(path))
    return data


def read_given_text(path: str | Path, max_bytes: int = SETTINGS_BYTES) -> str:
    """Return the text of a file that a user names: it may be a pipe of a shell, too.

    Raises:
        OSError: The file cannot be read, or has more bytes; a device may have no end.
        ValueError: The text is not UTF-8, or the path is not valid.
    """
    with open(path, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes >> 20} MiB", str(path))
    return data.decode("utf-8")


def read_regular_text(path: str | Path, max_bytes: int = SETTINGS_BYTES) -> str:
    """Return a file's text.

    Raises:
        OSError: The file is refused by :func:`read_regular`.
        UnicodeDecodeError: The text is not UTF-8.
    """
    return read_regular(path, max_bytes).decode("utf-8")
