"""Names of modules, of which a checkpoint or an adapter may leave the first parts out."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class ModuleNames:
    """Names that an adapter has, to be found by those that places have.

    Args:
        names: The adapter's.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_tail: dict[str, list[str]] = {}
        for name in names:
            self._by_tail.setdefault(_tail(name), []).append(name)

    def find(self, module: str) -> str | None:
        """Return the adapter's name of a module."""
        for name in self._by_tail.get(_tail(module), ()):
            if f".{name}".endswith(f".{module}") or f".{module}".endswith(f".{name}"):
                return name
        return None


def _tail(module: str) -> str:
    """Return a name from the number of its layer on; all of it without one."""
    found = _NUMBER.search(module)
    return module.rpartition(".")[2] if found is None else module[found.start() :]
