"""A RAM tier that other engines fill: blocks of prompts that they compute for this one."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from quire.core.log import get_logger
from quire.distributed.local_messages import peer_is_own_user, send
from quire.runner.tiers.sealed_block import Bytes
from quire.runner.transfer.messages import (
    NO_ROW,
    Hello,
    Offer,
    Release,
    Rows,
    receive,
)
from quire.runner.transfer.shared_blocks import SharedBlocks

log = get_logger(__name__)


class Inbox:
    """Blocks by content hash; the interface is :class:`~quire.runner.tiers.ram_tier.RamTier`'s.

    The engine's thread uses it as a tier; a thread for each sender answers its offers.

    Args:
        num_blocks: It holds at most, those included that are on their way.
        block_bytes: Of each.
        address: Of the socket, in the kernel's own space of names: it has no file.

    Attributes:
        is_cached: Returns whether the engine holds a block in its cache; such ones are not wanted.
    """

    label = "ram"

    def __init__(self, num_blocks: int, block_bytes: int, address: str) -> None:
        self._memory = SharedBlocks.create(num_blocks, block_bytes)
        self._block_bytes, self._num_rows = block_bytes, num_blocks
        self._lock = threading.Lock()  # of all that follows
        self._rows: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free = list(range(num_blocks - 1, -1, -1))
        self._expected: dict[bytes, int] = {}  # offered, each by one sender
        self._connections: set[socket.socket] = set()
        self.is_cached: Callable[[bytes], bool] = lambda block_hash: False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + address)
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, name="quire-kv-inbox", daemon=True)
        self._thread.start()

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds now, those on their way included."""
        return self._num_rows - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of them."""
        return self.num_blocks * self._block_bytes

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether it holds a block, which has come."""
        with self._lock:
            return block_hash in self._rows or self._has_come(block_hash)

    def put(self, block_hash: bytes, data: Bytes) -> bool:
        """Copy a block that leaves the cache; return whether it was not there."""
        with self._lock:
            if block_hash in self._expected:
                return False  # it comes, or can be computed
            row = self._rows.pop(block_hash, None)
            is_new = row is None
            if row is None:
                row = self._take_row()
                if row is None:
                    return False
                self._memory.rows[row] = data
            self._rows[block_hash] = row
            return is_new

    def get(self, block_hash: bytes) -> Bytes:
        """Return a copy of a block; it is the one used last.

        Raises:
            KeyError: It is not there.
        """
        with self._lock:
            self._has_come(block_hash)
            self._rows.move_to_end(block_hash)
            found: Bytes = self._memory.rows[self._rows[block_hash]].copy()
        return found

    def clear(self) -> None:
        """Forget all blocks but those on their way, which were computed since."""
        with self._lock:
            self._free += self._rows.values()
            self._rows.clear()

    def close(self) -> None:
        """End the connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _has_come(self, block_hash: bytes) -> bool:
        """Return whether an offered block is there, which is a block like others from now on."""
        row = self._expected.get(block_hash)
        if row is None or not self._memory.flags[row]:
            return False
        del self._expected[block_hash]
        self._rows[block_hash] = row
        return True

    def _take_row(self) -> int | None:
        if self._free:
            return self._free.pop()
        return self._rows.popitem(last=False)[1] if self._rows else None

    # -- in threads of their own --------------------------------------------------------------
    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer a sender until it is gone."""
        offered: set[bytes] = set()
        try:
            if peer_is_own_user(connection):
                hello = Hello(self._num_rows, self._block_bytes)
                send(connection, hello, self._memory.descriptor)
                while True:
                    message, _ = receive(connection)
                    if isinstance(message, Offer):
                        send(connection, Rows(self._reserve(message.block_hashes, offered)))
                    elif isinstance(message, Release):
                        self._give_up(message.block_hashes, offered)
        except (EOFError, OSError, msgspec.DecodeError) as error:
            log.debug("[kv] a sender has left: %r", error)
        finally:
            self._give_up(list(offered), offered)
            self._connections.discard(connection)
            connection.close()

    def _reserve(self, block_hashes: Sequence[bytes], offered: set[bytes]) -> list[int]:
        rows = []
        with self._lock:
            for block_hash in block_hashes:
                held = block_hash in self._rows or block_hash in self._expected
                row = None if held or self.is_cached(block_hash) else self._take_row()
                if row is not None:
                    self._memory.flags[row] = 0
                    self._expected[block_hash] = row
                    offered.add(block_hash)
                rows.append(NO_ROW if row is None else row)
        return rows

    def _give_up(self, block_hashes: Sequence[bytes], offered: set[bytes]) -> None:
        """Free the rows of blocks that have not come and will not."""
        with self._lock:
            for block_hash in block_hashes:
                if block_hash in offered:
                    offered.discard(block_hash)
                    if not self._has_come(block_hash):
                        row = self._expected.pop(block_hash, None)
                        if row is not None:
                            self._free.append(row)
