"""A sender's connection to one receiver: through memory of the machine, or by TCP to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from quire.runner.blocks.tiers.sealed_block import Bytes

#: Seconds within which a receiver must answer and read; else it gets no blocks and computes them.
ANSWER_SECONDS = 1.0

#: Records bytes that were sent to a receiver, and the seconds that this took; from any thread.
Sent: TypeAlias = Callable[[int, float], None]


class BlockLink(Protocol):
    """A connection to one receiver; the engine's thread calls it."""

    def offer(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Return the row for each block, or ``NO_ROW``.

        Raises:
            OSError, EOFError: The receiver does not answer.
        """
        ...

    def release(self, block_hashes: Sequence[bytes]) -> None:
        """Tell the receiver that blocks which were offered will not be sent.

        Raises:
            OSError: The receiver is gone.
        """
        ...

    def write(self, block_hash: bytes, row: int, data: Bytes) -> bool:
        """Send a block that was offered; return whether the queue had room for it.

        Args:
            block_hash: Hash of the block's content.
            row: Row of the receiver's memory.
            data: (block bytes,), which stay as they are from now on.

        Raises:
            OSError: The receiver is gone.
        """
        ...

    def close(self) -> None:
        """Stop sending, and close the connection."""
        ...
