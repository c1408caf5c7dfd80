"""What a tier that is read and written in threads offers, and what it may do wrong: nothing.

Whatever fails in it is a block that is not there, or was not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.metrics import Samples
from quire.runner.tiers.sealed_block import Bytes


class SlowTier(Protocol):
    """Blocks by content hash.

    Attributes:
        label: For metrics.
        is_writable: Whether blocks are put into it.
        byte_seconds: What a byte takes until that was measured.
        num_failures: Times that it did not answer, or take a block.
    """

    label: str
    is_writable: bool
    byte_seconds: float
    num_failures: int

    def contains(self, block_hash: bytes) -> bool | None:
        """Return at once whether it has a block; None when only :meth:`look_up` can tell."""
        ...

    def look_up(self, block_hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of a chain it has; it may take a while."""
        ...

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Take note at once that blocks are used, which may be there or not."""
        ...

    def read(self, block_hash: bytes) -> Bytes | None:
        """Return a block as it was written; None when it is not there."""
        ...

    def write(self, block_hash: bytes, data: Bytes) -> bool:
        """Keep a block; return whether that could be done."""
        ...

    def clear(self) -> None:
        """Forget the blocks that it may."""
        ...

    def forget(self, block_hash: bytes) -> None:
        """Forget a block if it may."""
        ...

    def samples(self) -> Samples:
        """Return what it holds, by metric stem."""
        ...

    def describe(self) -> str:
        """Return what it is and holds, for people."""
        ...

    def close(self) -> None:
        """Let go of what it has open; it is not read or written any more."""
        ...
