"""The connection to a receiver of the same machine, whose memory is mapped."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.transfer.link import ANSWER_SECONDS, Sent
from quire.runner.blocks.transfer.shared_blocks import SharedBlocks
from quire.runner.blocks.transfer.transfer_messages import (
    BlockOffer,
    ReceiverHello,
    Release,
    receive,
    rows_of,
)
from quire.system.channel import peer_is_own_user, send


class SharedLink:
    """A :class:`~quire.runner.blocks.transfer.link.BlockLink` through memory.

    Args:
        name: Name of the receiver's socket in the kernel's abstract namespace, without a file.
        block_bytes: Bytes of each block.
        sent: Call that records each block.

    Raises:
        OSError, EOFError: The receiver does not exist, does not answer, or has other blocks.
    """

    def __init__(self, name: str, block_bytes: int, sent: Sent) -> None:
        self._sent = sent
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(ANSWER_SECONDS)
        try:
            self._connection.connect("\0" + name)
            if not peer_is_own_user(self._connection):
                raise OSError("the receiver must be this user's; it is another user's")
            hello, descriptors = receive(self._connection)
            if not isinstance(hello, ReceiverHello) or hello.block_bytes != block_bytes:
                raise OSError(f"the receiver must have blocks of {block_bytes} bytes; got {hello}")
            self._blocks = SharedBlocks(descriptors[0], hello.num_rows, block_bytes)
        except BaseException:
            self._connection.close()
            raise

    def offer(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Offer blocks, and return the row for each; see the protocol."""
        send(self._connection, BlockOffer(list(block_hashes)))
        return rows_of(receive(self._connection)[0], len(block_hashes))

    def release(self, block_hashes: Sequence[bytes]) -> None:
        """Withdraw offered blocks; see the protocol."""
        send(self._connection, Release(list(block_hashes)))

    def write(self, block_hash: bytes, row: int, data: Bytes) -> bool:
        """Write a block; see the protocol."""
        start = time.perf_counter()
        self._blocks.rows[row] = data
        self._blocks.flags[row] = 1
        self._sent(len(data), time.perf_counter() - start)
        return True

    def close(self) -> None:
        """Close the memory and the connection."""
        self._connection.close()
        self._blocks.close()
