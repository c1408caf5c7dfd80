"""State of a file that changes when the file does; its content is not read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

FileState: TypeAlias = tuple[int, int, int, int] | None


def file_state(path: Path) -> FileState:
    """Return device, number, size and time of a file or folder; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def file_states(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the states of several."""
    return tuple(map(file_state, paths))
