"""Names of modules, whose first parts a checkpoint and an adapter may have otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: ``model.language_model.layers`` has been ``language_model.model.layers`` and ``model.layers``.
WRAPPERS = ("model", "language_model")
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
        names = self._by_tail.get(_tail(module), ())
        for name in names:
            if f".{name}".endswith(f".{module}") or f".{module}".endswith(f".{name}"):
                return name
        bare = _without_wrappers(module)
        return next((name for name in names if _without_wrappers(name) == bare), None)


def _without_wrappers(module: str) -> list[str]:
    """Return a name's parts without those that versions of transformers put at other places."""
    return [part for part in module.split(".") if part not in WRAPPERS]


def _tail(module: str) -> str:
    """Return a name from the number of its layer on; all of it without one."""
    found = _NUMBER.search(module)
    return module.rpartition(".")[2] if found is None else module[found.start() :]
