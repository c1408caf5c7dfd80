"""A folder that one process at a time writes to."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from quire.core.errors import ConfigError


@contextlib.contextmanager
def lock_folder(folder: Path, rule: str, named: Path) -> Iterator[None]:
    """Keep other processes out of ``folder``.

    Args:
        folder: The folder, in which a file ``lock`` is made.
        rule: The error's rule: what must have one writer.
        named: The folder as the user knows it.

    Raises:
        ConfigError: Another process writes to the folder.
    """
    with (folder / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{rule} must have one writer; another process writes {named}."
            ) from None
        yield
