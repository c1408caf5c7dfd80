"""Adapters on ranks: the driver says which are in memory, and every rank has its part of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from quire.core.adapters import AdapterReference
from quire.models.adapters.placement import PlacedAdapter
from quire.runner.adapter_placing import AdapterReader
from quire.runner.parallel.commands import ClearAdapter, Command, ReadAdapter, SetAdapter


class ToldAdapters:
    """Tells other ranks; see :class:`quire.runner.adapter_store.OtherRanks`."""

    def __init__(self, announce: Callable[[Command], None]) -> None:
        self._announce = announce

    def read(self, adapter: AdapterReference) -> None:
        """Have them begin to read it."""
        self._announce(ReadAdapter(adapter))

    def set(self, content_hash: str, slot: int) -> None:
        """Have them take it into use, when they have read it."""
        self._announce(SetAdapter(content_hash, slot))

    def clear(self, slot: int) -> None:
        """Have them let go of it."""
        self._announce(ClearAdapter(slot))


class RankAdapters:
    """Those of a rank that is told."""

    def __init__(self, reader: AdapterReader) -> None:
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, "quire-adapters")
        self._reading: dict[str, Future[PlacedAdapter]] = {}
        self._placed: dict[int, PlacedAdapter] = {}

    def read(self, adapter: AdapterReference) -> None:
        """Begin to read an adapter; what an earlier reading came to is dropped."""
        self._reading = {adapter.content_hash: self._thread.submit(self._reader.read, adapter)}

    def set(self, content_hash: str, slot: int) -> None:
        """Take an adapter into use.

        Raises:
            ModelLoadError: It cannot be read here, though the driver could.
        """
        placed = self._reading.pop(content_hash).result()
        placed.set(slot)
        self._placed[slot] = placed

    def clear(self, slot: int) -> None:
        """Let go of an adapter."""
        self._placed.pop(slot).clear(slot)
