"""Adapters on ranks: the driver names those in memory, and every rank has its part of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from quire.core.adapter_reference import AdapterReference
from quire.models.adapters.adapter_placement import PlacedAdapter
from quire.runner.memory.adapter_placing import AdapterReader
from quire.runner.ranks.commands import ClearAdapter, Command, ReadAdapter, SetAdapter


class ToldAdapters:
    """Announcements to other ranks; see :class:`quire.runner.memory.adapter_store.OtherRanks`."""

    def __init__(self, announce: Callable[[Command], None]) -> None:
        self._announce = announce

    def read(self, adapter: AdapterReference) -> None:
        """Tell ranks to begin reading an adapter."""
        self._announce(ReadAdapter(adapter))

    def set(self, content_hash: str, slot: int) -> None:
        """Tell ranks to put an adapter into use once they have read it."""
        self._announce(SetAdapter(content_hash, slot))

    def clear(self, slot: int) -> None:
        """Tell ranks to release the adapter of a slot."""
        self._announce(ClearAdapter(slot))


class RankAdapters:
    """The adapters of a rank that follows the driver."""

    def __init__(self, reader: AdapterReader) -> None:
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, "quire-adapters")
        self._reading: dict[str, Future[PlacedAdapter]] = {}
        self._placed: dict[int, PlacedAdapter] = {}

    def read(self, adapter: AdapterReference) -> None:
        """Begin to read an adapter; the result of an earlier reading is dropped."""
        self._reading = {adapter.content_hash: self._thread.submit(self._reader.read, adapter)}

    def set(self, content_hash: str, slot: int) -> None:
        """Put an adapter into use.

        Raises:
            ModelLoadError: The adapter cannot be read here, though the driver could read it.
        """
        placed = self._reading.pop(content_hash).result()
        placed.set(slot)
        self._placed[slot] = placed

    def clear(self, slot: int) -> None:
        """Release the adapter of a slot."""
        self._placed.pop(slot).clear(slot)
