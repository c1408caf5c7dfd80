"""Observers of a pool's blocks: they learn what becomes of each block and decide nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.step import SchedulerOutput


class BlockObserver(Protocol):
    """Follows the life of blocks: given out, cached, hit any number of times, evicted."""

    def given_out(self, block_id: int, content: bytes | None) -> None:
        """A block is given to a request; ``content``: hash of what it still holds, or None."""
        ...

    def cached(self, block_id: int, block_hash: bytes) -> None:
        """A block can be found by its content, which the next step has filled in at its end."""
        ...

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request shares blocks that hold its tokens."""
        ...

    def evicted(self, block_id: int, block_hash: bytes) -> None:
        """A block cannot be found any more: it is about to be given out, or may be wrong."""
        ...


class CanaryFeed:
    """Collects for a KV canary which blocks the next step fills and which it uses again."""

    def __init__(self) -> None:
        self._sealed: list[int] = []
        self._reused: list[tuple[str, list[int]]] = []

    def given_out(self, block_id: int, content: bytes | None) -> None:
        """Do nothing: what the block held is of no interest until it is cached again."""

    def cached(self, block_id: int, block_hash: bytes) -> None:
        """Take the block's checksum after the step."""
        self._sealed.append(block_id)

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Verify the blocks before the step."""
        self._reused.append((request_id, list(block_ids)))

    def evicted(self, block_id: int, block_hash: bytes) -> None:
        """Do nothing, for the same reason as in :meth:`given_out`."""

    def fill(self, plan: SchedulerOutput) -> None:
        """Move what was collected to the step's plan."""
        plan.sealed_blocks, self._sealed = self._sealed, []
        plan.reused_blocks, self._reused = self._reused, []
