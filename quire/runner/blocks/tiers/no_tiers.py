"""Tiers in which no block is ever found, and a store that keeps none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.core.external_blocks import ExternalBlocks
from quire.core.metrics import Samples
from quire.runner.blocks.tiers.sealed_block import Bytes


class NoTiers:
    """The tiers of an engine that keeps its blocks in the cache alone.

    They are the engine's :class:`~quire.engine.gates.tier_gate.Tiers` and the runner's
    :class:`~quire.runner.blocks.block_store.BlockStore`.
    """

    outlive = False
    move_seconds = 1.0

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """Do nothing: no block is sent here."""

    def find(self, block_hashes: Sequence[bytes]) -> ExternalBlocks | None:
        """Return that no block is found."""
        return ExternalBlocks([])

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Do nothing: no block is kept."""

    def fetch(self, block_hashes: Sequence[bytes]) -> None:
        """Do nothing: no block was found."""

    def num_ready(self, block_hashes: Sequence[bytes]) -> int | None:
        """Return None: no block will arrive."""
        return None

    def claim(self, block_hashes: Sequence[bytes]) -> None:
        """Do nothing: no block was found."""

    def leave(self, block_hashes: Sequence[bytes]) -> None:
        """Do nothing: no request waits for a block."""

    def wait(self, seconds: float) -> None:
        """Do nothing: no block will arrive."""

    def reset(self) -> None:
        """Do nothing: no block is kept."""

    def put(self, block_hash: bytes, data: Bytes) -> None:
        """Do nothing: no block is kept."""

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Do nothing: no block is kept."""

    def wants(self, block_hash: bytes) -> bool:
        """Return False: no block is saved."""
        return False

    def get(self, block_hash: bytes) -> Bytes:
        """Raise :class:`KeyError`: no block is kept."""
        raise KeyError(block_hash)

    def moved(self, num_blocks: int, seconds: float) -> None:
        """Do nothing: no block is ever loaded."""

    def close(self) -> None:
        """Do nothing: there are no threads."""

    def samples(self) -> Samples:
        """Return no counts."""
        return {}

    def describe(self) -> str:
        """Return that there are no tiers, as text for people."""
        return "no tiers"
