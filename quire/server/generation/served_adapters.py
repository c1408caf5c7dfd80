"""The adapters of a served model, by the names that requests use as ``model``."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from quire.core.adapter_reference import AdapterReference
from quire.core.errors import ConfigError
from quire.llm.engine_client import EngineClient

#: Names that are kept at most: each is a line of ``/v1/models``.
MOST_NAMES = 1000
_NAME = re.compile(r"[\w][\w.:/+@-]{0,199}")


@dataclass(frozen=True, slots=True)
class NamedFolder:
    """The name and folder of one adapter, from ``--lora-modules``."""

    name: str
    path: str


def parse_modules(modules: Iterable[str]) -> list[NamedFolder]:
    """Read ``name=path`` or, as in vLLM, ``{"name": ..., "path": ...}``.

    Raises:
        ConfigError: One is neither, or a name is given twice or cannot be one.
    """
    found = [_parse(text) for text in modules]
    names = [one.name for one in found]
    for name in names:
        if not is_name(name) or names.count(name) > 1:
            raise ConfigError(
                "[config] --lora-modules must have different names of letters, digits and ._:/+@-; "
                f"got {name!r:.80}."
            )
    return found


def is_name(name: str) -> bool:
    """Return whether an adapter may be called that."""
    return _NAME.fullmatch(name) is not None


def _parse(text: str) -> NamedFolder:
    name, equals, path = text.partition("=")
    if text.startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        given = value if isinstance(value, dict) else {}
        named = [given.get(key) for key in ("name", "path")]
        name, path = (part if isinstance(part, str) else "" for part in named)
        equals = "="
    if not equals or not name or not path:
        raise ConfigError(
            '[config] --lora-modules must be name=path or {"name": ..., "path": ...}; got '
            f"{text!r:.80}."
        )
    return NamedFolder(name, path)


class ServedAdapters:
    """Names of adapters.

    Args:
        taken: Names of the model, which no adapter may have.
    """

    def __init__(self, taken: Collection[str]) -> None:
        self._taken = frozenset(taken)
        self._by_name: dict[str, AdapterReference] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def get(self, name: str) -> AdapterReference | None:
        """Return the adapter of a name; None where it is not one's."""
        return self._by_name.get(name)

    def list(self) -> list[AdapterReference]:
        """Return all, in the order in which they were added."""
        return list(self._by_name.values())

    def may_be(self, name: str) -> bool:
        """Return whether a new adapter may be called that."""
        return is_name(name) and name not in self._taken

    @property
    def is_full(self) -> bool:
        """Whether there are as many as may be."""
        return len(self._by_name) >= MOST_NAMES

    def add_folders(self, folders: Iterable[NamedFolder], engine: EngineClient) -> None:
        """Add the adapters that are there from the start.

        Raises:
            ConfigError: One has the model's name.
            ModelLoadError: One cannot be used.
        """
        for one in folders:
            if not self.may_be(one.name):
                raise ConfigError(
                    f"[config] --lora-modules must not have the model's name; got {one.name}."
                )
            self.add(engine.read_adapter(one.name, one.path))

    def add(self, adapter: AdapterReference) -> None:
        """Offer an adapter to requests by its name; one of the same name is replaced."""
        self._by_name[adapter.name] = adapter

    def remove(self, name: str) -> bool:
        """Hide an adapter from later requests; return whether there was one of that name."""
        return self._by_name.pop(name, None) is not None
