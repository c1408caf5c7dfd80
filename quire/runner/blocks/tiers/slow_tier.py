"""The interface of a tier that is read and written in threads; it raises nothing.

A failure counts as a block that is missing, or was not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.metrics import Samples
from quire.runner.blocks.tiers.sealed_block import Bytes


class SlowTier(Protocol):
    """Blocks by content hash.

    Attributes:
        label: Name of the tier in metrics.
        is_writable: Whether blocks are put into it.
        byte_seconds: Seconds to read a byte, until that is measured.
        num_failures: Times that the tier did not answer, or take a block.
    """

    label: str
    is_writable: bool
    byte_seconds: float
    num_failures: int

    def contains(self, block_hash: bytes) -> bool | None:
        """Return at once whether a block is there; None when only :meth:`look_up` can tell."""
        ...

    def look_up(self, block_hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks of a chain in the tier; it may take a while."""
        ...

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Record at once a use of blocks, which may be there or not."""
        ...

    def read(self, block_hash: bytes) -> Bytes | None:
        """Return a block as it was written; None when it is missing."""
        ...

    def write(self, block_hash: bytes, data: Bytes) -> bool:
        """Keep a block; return whether it was kept."""
        ...

    def clear(self) -> None:
        """Remove all blocks of the model, if this server may remove them."""
        ...

    def forget(self, block_hash: bytes) -> None:
        """Remove a block, if this server may remove it."""
        ...

    def samples(self) -> Samples:
        """Return the tier's counts, by metric stem."""
        ...

    def describe(self) -> str:
        """Return the tier's place and content as text, for people."""
        ...

    def close(self) -> None:
        """Close files and connections; no call follows."""
        ...
