"""The connection to a receiver on another machine: a thread sends queued blocks with checksums."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from zlib import crc32

from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.transfer.link import ANSWER_SECONDS, Sent
from quire.runner.blocks.transfer.transfer_messages import (
    BlockOffer,
    Blocks,
    Knock,
    Message,
    ReceiverHello,
    Release,
    encoded,
    receive,
    rows_of,
    send_parts,
)
from quire.settings.kv_transfer import InboxAddress
from quire.system.connections import introduce, keep_alive

#: Bytes of blocks that wait for the network, at most: those of a step while the last are sent.
QUEUED_BYTES = 256 * 2**20
#: Bytes and blocks that are sent at once, at most: messages wait for no more than these.
FRAME_BYTES, FRAME_BLOCKS = 2 * 2**20, 256


class TcpLink:
    """A :class:`~quire.runner.blocks.transfer.link.BlockLink` by TCP.

    The engine's thread waits for answers to offers alone; offers overtake queued blocks.

    Args:
        address: Address of the receiver.
        block_bytes: Bytes of each block.
        knock: Introduction to the receiver.
        sent: Call that records the blocks sent.

    Raises:
        OSError, EOFError: The receiver does not exist, or takes no blocks of this sender.
    """

    def __init__(self, address: InboxAddress, block_bytes: int, knock: Knock, sent: Sent) -> None:
        self._sent = sent
        self._num_at_once = max(1, min(FRAME_BYTES // block_bytes, FRAME_BLOCKS))
        self._room = max(QUEUED_BYTES // block_bytes, 2)  # blocks
        self._changed = threading.Condition()  # of all that follows
        self._messages: deque[Message] = deque()
        self._blocks: deque[tuple[bytes, Bytes]] = deque()
        self._failure: OSError | None = None
        self._is_closed = False
        place = (address.host, address.port)
        self._connection = socket.create_connection(place, timeout=ANSWER_SECONDS)
        try:
            keep_alive(self._connection)
            introduce(self._connection, knock.key, knock.fingerprint)
            hello, _ = receive(self._connection)
            if (
                not isinstance(hello, ReceiverHello)
                or hello.refusal
                or hello.block_bytes != block_bytes
            ):
                raise OSError(f"the receiver must take blocks of {block_bytes} bytes; got {hello}")
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._run, name="quire-kv-send", daemon=True)
        self._thread.start()

    def offer(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Offer blocks, and return the row for each; see the protocol."""
        self._say(BlockOffer(list(block_hashes)))
        return rows_of(receive(self._connection)[0], len(block_hashes))

    def release(self, block_hashes: Sequence[bytes]) -> None:
        """Withdraw offered blocks; see the protocol."""
        self._say(Release(list(block_hashes)))

    def write(self, block_hash: bytes, row: int, data: Bytes) -> bool:
        """Queue a block; see the protocol."""
        if not self._room:
            self._say(Release([block_hash]))
            return False
        with self._changed:
            self._check()
            self._room -= 1
            self._blocks.append((block_hash, data))
            self._changed.notify()
        return True

    def close(self) -> None:
        """Stop sending, and close the connection."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._end()
        self._thread.join()
        self._connection.close()

    def _say(self, message: Message) -> None:
        with self._changed:
            self._check()
            self._messages.append(message)
            self._changed.notify()

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(f"an earlier message was not sent: {self._failure}")

    def _end(self) -> None:
        with suppress(OSError):  # the receiver is gone
            self._connection.shutdown(socket.SHUT_RDWR)

    # -- in a thread of its own ---------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._messages or self._blocks or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    return
                messages, self._messages = self._messages, deque()
                count = min(len(self._blocks), self._num_at_once)
                blocks = [self._blocks.popleft() for _ in range(count)]
            try:
                self._send(messages, blocks)
            except OSError as error:
                with self._changed:
                    self._failure = error
                    self._blocks.clear()
                self._end()
                return
            with self._changed:
                self._room += len(blocks)

    def _send(self, messages: deque[Message], blocks: list[tuple[bytes, Bytes]]) -> None:
        start = time.perf_counter()
        heads, parts = [encoded(message) for message in messages], []
        if blocks:
            parts = [data.data for _, data in blocks]
            sums = [crc32(data.data, crc32(block_hash)) for block_hash, data in blocks]
            heads.append(encoded(Blocks([block_hash for block_hash, _ in blocks], sums)))
        send_parts(self._connection, [memoryview(b"".join(heads)), *parts])
        if blocks:
            self._sent(sum(map(len, parts)), time.perf_counter() - start)
