"""Names by keys that grow: the least is found without a look at the others."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

Name = TypeVar("Name", str, int)

#: Entries that are never too many.
LEAST_ROOM = 64


class LazyHeap(Generic[Name]):
    """Finds the name with the least key.

    A key may grow without notice: a name that comes to the front with an old key goes back to where
    the new one puts it. One that has become less, or a name that has joined, must be pushed.

    Entries that count no more go when they come to the front, or when half of all may be such.

    Args:
        key: Function that returns a name's key, comparable with others; None for a name that is
            gone.
    """

    def __init__(self, key: Callable[[Name], Any | None]) -> None:
        self._key: Callable[[Name], Any | None] = key
        self._heap: list[tuple[Any, Name]] = []
        self._entries: dict[Name, tuple[Any, Name]] = {}  # the one of a name's entries that counts
        self._room = LEAST_ROOM  # entries until a look at all of them

    def push(self, name: Name) -> None:
        """Put a name where its key says; nowhere when it is gone."""
        key = self._key(name)
        entry = (key, name)
        if key is not None and self._entries.get(name) != entry:
            self._entries[name] = entry
            heappush(self._heap, entry)
            if len(self._heap) > self._room:
                self._clean()

    def first(self) -> Name | None:
        """Return the name with the least key, or None when all are gone."""
        while self._heap:
            entry = self._heap[0]
            name = entry[1]
            if self._entries.get(name) is not entry:
                heappop(self._heap)
                continue
            key = self._key(name)
            if key is None:
                heappop(self._heap)
                del self._entries[name]
            elif key == entry[0]:
                return name
            else:
                self._entries[name] = entry = (key, name)
                heapreplace(self._heap, entry)
        return None

    def __len__(self) -> int:
        """Return the number of entries, those included that count no more."""
        return len(self._heap)

    def _clean(self) -> None:
        keys = {name: self._key(name) for name in self._entries}
        self._entries = {name: (key, name) for name, key in keys.items() if key is not None}
        self._heap = list(self._entries.values())
        heapify(self._heap)
        self._room = 2 * len(self._heap) + LEAST_ROOM
