"""Sends the blocks of prompts to the engines that go on from them, as soon as they are full.

It is the tiers of an engine that computes prompts for others: nothing is ever found in it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from quire.core.found_blocks import FoundBlocks
from quire.core.log import get_logger
from quire.core.metrics import Samples
from quire.distributed.local_messages import peer_is_own_user, send
from quire.runner.tiers.sealed_block import Bytes
from quire.runner.tiers.traffic import Traffic
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

#: A receiver that does not answer an offer in this time gets no blocks: it computes them.
ANSWER_SECONDS = 1.0


class _Link:
    """A connection to one receiver.

    Raises:
        OSError, EOFError, msgspec.DecodeError: There is none, or it does not answer.
    """

    def __init__(self, address: str, block_bytes: int) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(ANSWER_SECONDS)
        try:
            self.connection.connect("\0" + address)
            if not peer_is_own_user(self.connection):
                raise OSError(f"{address} is another user's")
            hello, descriptors = receive(self.connection)
            if not isinstance(hello, Hello) or hello.block_bytes != block_bytes:
                raise OSError(f"{address} has other blocks: {hello}")
            self.blocks = SharedBlocks(descriptors[0], hello.num_rows, block_bytes)
        except BaseException:
            self.connection.close()
            raise

    def offer(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Return the row for each block, or ``NO_ROW``."""
        send(self.connection, Offer(list(block_hashes)))
        answer, _ = receive(self.connection)
        if not isinstance(answer, Rows) or len(answer.rows) != len(block_hashes):
            raise OSError(f"rows must follow an offer; got {type(answer).__name__}")
        return answer.rows

    def close(self) -> None:
        """Have nothing more sent."""
        self.connection.close()
        self.blocks.close()


@dataclass(slots=True)
class _Place:
    link: _Link
    target: int
    row: int


class Outbox:
    """Blocks on their way out; the engine's thread calls it.

    Args:
        addresses: Of the engines that take blocks, by their numbers.
        block_bytes: Of each block.
    """

    outlive = True
    move_seconds = 1.0

    def __init__(self, addresses: Sequence[str], block_bytes: int) -> None:
        self._addresses = tuple(addresses)
        self._block_bytes = block_bytes
        self._links: dict[int, _Link] = {}
        self._places: dict[bytes, list[_Place]] = {}
        self._traffic = Traffic("transfer")

    def announce(self, target: int, block_hashes: Sequence[bytes]) -> None:
        """Have blocks that are about to be computed sent to an engine, as far as it lacks them."""
        try:
            link = self._links.get(target)
            if link is None:
                link = self._links[target] = _Link(self._addresses[target], self._block_bytes)
            rows = link.offer(block_hashes)
        except (OSError, EOFError, msgspec.DecodeError, IndexError) as error:
            log.warning("[kv] engine %d takes no blocks: %r", target, error)
            self._drop(target)
            return
        for block_hash, row in zip(block_hashes, rows, strict=True):
            if row != NO_ROW:
                self._places.setdefault(block_hash, []).append(_Place(link, target, row))

    def withdraw(self, block_hashes: Sequence[bytes]) -> None:
        """Take note that what was announced of these and was not computed never will be."""
        left: dict[int, list[bytes]] = {}
        for block_hash in block_hashes:
            for place in self._places.pop(block_hash, ()):
                left.setdefault(place.target, []).append(block_hash)
        for target, hashes in left.items():
            try:
                send(self._links[target].connection, Release(hashes))
            except (OSError, KeyError):
                self._drop(target)

    # -- as a block store -----------------------------------------------------------------------
    def wants(self, block_hash: bytes) -> bool:
        """Return whether a block that is full has a place to go to."""
        return block_hash in self._places

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Send a block that is full."""
        start = time.perf_counter()
        for place in self._places.pop(block_hash, ()):
            place.link.blocks.rows[place.row] = data
            place.link.blocks.flags[place.row] = 1
            self._traffic.stored(len(data), time.perf_counter() - start)

    def put(self, block_hash: bytes, data: Bytes) -> None:
        """A block leaves the cache: it was sent when it was full."""

    def get(self, block_hash: bytes) -> Bytes:
        """Refuse: nothing is kept."""
        raise KeyError(block_hash)

    def moved(self, num_blocks: int, seconds: float) -> None:
        """Nothing is ever loaded."""

    # -- as tiers -------------------------------------------------------------------------------
    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """None is sent here."""

    def find(self, block_hashes: Sequence[bytes]) -> FoundBlocks | None:
        """Find nothing."""
        return FoundBlocks([])

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Nothing is kept."""

    def claim(self, block_hashes: Sequence[bytes]) -> None:
        """Nothing was found."""

    def fetch(self, block_hashes: Sequence[bytes]) -> None:
        """Nothing was found."""

    def num_ready(self, block_hashes: Sequence[bytes]) -> int | None:
        """Nothing will come."""
        return None

    def leave(self, block_hashes: Sequence[bytes]) -> None:
        """Nobody waits for any."""

    def wait(self, seconds: float) -> None:
        """Nothing comes."""

    def reset(self) -> None:
        """Nothing is kept."""

    def samples(self) -> Samples:
        """Return what was sent, by metric stem."""
        return self._traffic.samples()

    def describe(self) -> str:
        """Return what is on its way, for people."""
        return f"outbox: {len(self._places)} blocks announced, {len(self._links)} receivers"

    def close(self) -> None:
        """End the connections."""
        for target in list(self._links):
            self._drop(target)

    def _drop(self, target: int) -> None:
        """Send nothing more to a receiver, which is told by the end of the connection."""
        link = self._links.pop(target, None)
        if link is None:
            return
        for block_hash, places in list(self._places.items()):
            places[:] = [place for place in places if place.link is not link]
            if not places:
                del self._places[block_hash]
        link.close()
