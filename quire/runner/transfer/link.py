"""A sender's way to one receiver: through memory of the machine, or by TCP to another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from quire.runner.tiers.sealed_block import Bytes

#: A receiver that does not answer in this time, or reads nothing, gets no blocks: it computes them.
ANSWER_SECONDS = 1.0

#: Takes note of bytes that went to a receiver, and the seconds that this took; from any thread.
Sent: TypeAlias = Callable[[int, float], None]


class Link(Protocol):
    """A connection to one receiver; the engine's thread calls it."""

    def offer(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Return the row for each block, or ``NO_ROW``.

        Raises:
            OSError, EOFError: It does not answer.
        """
        ...

    def release(self, block_hashes: Sequence[bytes]) -> None:
        """Say that blocks which were offered will not come.

        Raises:
            OSError: It is gone.
        """
        ...

    def write(self, block_hash: bytes, row: int, data: Bytes) -> bool:
        """Send a block that was offered; return whether there was room for it on the way.

        Args:
            block_hash: Of its content.
            row: The receiver's.
            data: (block bytes,); nobody changes it from now on.

        Raises:
            OSError: It is gone.
        """
        ...

    def close(self) -> None:
        """Have nothing more sent."""
        ...
