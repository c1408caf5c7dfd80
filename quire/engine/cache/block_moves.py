"""Moves of blocks between the KV cache and the tiers, collected for the next step.

A block that is given out is stored under what it held, before the next step writes it. What a step
fills is saved after it, where a tier outlives the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.core.step import SchedulerOutput


class BlockMoves:
    """Collects moves for plans; a block observer.

    Args:
        saves: Whether blocks are put into tiers as soon as they are full.
    """

    def __init__(self, saves: bool) -> None:
        self._saves = saves
        self._stores: list[tuple[int, bytes]] = []
        self._loads: dict[int, bytes] = {}
        self._filled: dict[int, bytes] = {}

    def load(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Fill blocks that were just given out, in the next step."""
        self._loads.update(blocks)

    def save(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Save blocks of the cache after the next step, if they are still there."""
        self._filled.update(blocks)

    def given_out(self, block_id: int, content: bytes | None) -> None:
        """Store what the block holds, unless it was to be loaded and never was."""
        self._filled.pop(block_id, None)
        if self._loads.pop(block_id, None) is None and content is not None:
            self._stores.append((block_id, content))

    def cached(self, block_id: int, block_hash: bytes) -> None:
        """Save the block once the step has filled it."""
        if self._saves:
            self._filled[block_id] = block_hash

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Do nothing: the block stays where it is."""

    def evicted(self, block_id: int, block_hash: bytes) -> None:
        """Do not save the block: other content may fill it, or what it holds may be wrong."""
        self._filled.pop(block_id, None)

    def fill(self, plan: SchedulerOutput) -> None:
        """Move what was collected to the step's plan."""
        plan.block_stores, self._stores = self._stores, []
        plan.block_loads, loads = list(self._loads.items()), self._loads
        plan.block_saves = [pair for pair in self._filled.items() if pair[0] not in loads]
        self._loads, self._filled = {}, {}
