"""The interface of the tier in memory: blocks that leave the cache, and those loaded next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.core.metrics import Samples
from quire.runner.blocks.tiers.sealed_block import Bytes


class MemoryTier(Protocol):
    """Blocks by content hash, in the memory of this machine.

    Attributes:
        label: Name of the tier in metrics.
    """

    label: str

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the tier holds now, those on their way included."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of these blocks."""
        ...

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether the tier holds a block."""
        ...

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """Set the test for cached blocks, which other engines need not send."""
        ...

    def is_coming(self, block_hash: bytes) -> bool:
        """Return whether another engine is sending a block, and it is worth a wait."""
        ...

    def put(self, block_hash: bytes, data: Bytes) -> bool:
        """Copy a block that leaves the cache; return whether it is new."""
        ...

    def get(self, block_hash: bytes) -> Bytes:
        """Return a block, valid until the next :meth:`put`, and record its use.

        Raises:
            KeyError: The tier does not hold the block.
        """
        ...

    def clear(self) -> None:
        """Forget all blocks except those on their way."""
        ...

    def samples(self) -> Samples:
        """Return the counts of blocks that other engines sent, by metric stem."""
        ...

    def close(self) -> None:
        """Close connections; no call follows."""
        ...
