"""Sender of prompts' blocks to the engines that continue the prompts, as soon as they are full.

It takes the place of tiers in an engine that computes prompts for others: no block is ever found.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.metrics import Samples
from quire.runner.blocks.tiers.no_tiers import NoTiers
from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.tiers.traffic import Traffic
from quire.runner.blocks.transfer.link import BlockLink
from quire.runner.blocks.transfer.shared_link import SharedLink
from quire.runner.blocks.transfer.tcp_link import TcpLink
from quire.runner.blocks.transfer.transfer_messages import NO_ROW, Knock
from quire.settings.kv_transfer import InboxAddress, KVTransfer
from quire.system.log import get_logger

log = get_logger(__name__)

#: Pause after a receiver gave no answer, as a multiple of the seconds that the attempt took.
PAUSE_FACTOR = 10.0


@dataclass(slots=True)
class _Place:
    link: BlockLink
    target: int
    row: int


class Outbox(NoTiers):
    """Blocks on their way out; the engine's thread calls it.

    As tiers and as a store it saves full blocks, which it sends, and nothing else.

    Args:
        transfer: Addresses at which engines take blocks, by their numbers.
        block_bytes: Bytes of each block.
        fingerprint: (32 bytes), hash of all that blocks depend on besides their tokens, the same on
            every machine.
    """

    outlive = True

    def __init__(self, transfer: KVTransfer, block_bytes: int, fingerprint: bytes = b"") -> None:
        self._addresses = transfer.addresses
        self._knock = Knock(transfer.key, fingerprint)
        self._block_bytes = block_bytes
        self._links: dict[int, BlockLink] = {}
        self._pauses: dict[int, float] = {}  # end of the pause, by engine
        self._places: dict[bytes, list[_Place]] = {}
        self._num_dropped = 0
        self._lock = threading.Lock()  # of all that follows
        self._traffic = Traffic("transfer")

    @property
    def outgoing(self) -> Outbox:
        """Sender of blocks to other engines: this one."""
        return self

    def announce(self, target: int, block_hashes: Sequence[bytes]) -> None:
        """Offer an engine blocks that are about to be computed, to send those it does not have."""
        start = time.monotonic()
        if start < self._pauses.get(target, 0.0):
            return
        try:
            link = self._links.get(target)
            if link is None:
                link = self._links[target] = self._connect(self._addresses[target])
            rows = link.offer(block_hashes)
        except (OSError, EOFError, IndexError) as error:
            log.warning("[kv] engine %d takes no blocks: %r", target, error)
            self._drop(target)
            now = time.monotonic()
            self._pauses[target] = now + PAUSE_FACTOR * (now - start)
            return
        for block_hash, row in zip(block_hashes, rows, strict=True):
            if row != NO_ROW:
                self._places.setdefault(block_hash, []).append(_Place(link, target, row))

    def withdraw(self, block_hashes: Sequence[bytes]) -> None:
        """Withdraw those of these announced blocks that were not computed and will not be."""
        left: dict[int, list[bytes]] = {}
        for block_hash in block_hashes:
            for place in self._places.pop(block_hash, ()):
                left.setdefault(place.target, []).append(block_hash)
        for target, hashes in left.items():
            try:
                self._links[target].release(hashes)
            except (OSError, KeyError):
                self._drop(target)

    def wants(self, block_hash: bytes) -> bool:
        """Return whether an engine has a row for a block that is full."""
        return block_hash in self._places

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Send a block that is full."""
        for place in self._places.pop(block_hash, ()):
            try:
                if not place.link.write(block_hash, place.row, data):
                    self._num_dropped += 1
            except OSError as error:
                log.warning("[kv] engine %d takes no more blocks: %s", place.target, error)
                self._drop(place.target)

    def samples(self) -> Samples:
        """Return the traffic to other engines, by metric stem."""
        dropped = {'kv_offload_dropped_blocks{tier="transfer"}': self._num_dropped}
        with self._lock:
            return self._traffic.samples() | dropped

    def describe(self) -> str:
        """Return the numbers of announced blocks and receivers as text, for people."""
        return f"outbox: {len(self._places)} blocks announced, {len(self._links)} receivers"

    def close(self) -> None:
        """Close the connections."""
        for target in list(self._links):
            self._drop(target)

    def _connect(self, address: InboxAddress) -> BlockLink:
        """Connect to a receiver by the fastest transport there is."""
        if address.name:
            try:
                return SharedLink(address.name, self._block_bytes, self._sent)
            except ConnectionRefusedError:  # no such name on this machine
                if not address.port:
                    raise
        return TcpLink(address, self._block_bytes, self._knock, self._sent)

    def _sent(self, num_bytes: int, seconds: float) -> None:
        """Record bytes that were sent; called by threads."""
        with self._lock:
            self._traffic.stored(num_bytes, seconds)

    def _drop(self, target: int) -> None:
        """Stop sending to a receiver, which learns it by the end of the connection."""
        link = self._links.pop(target, None)
        if link is None:
            return
        for block_hash, places in list(self._places.items()):
            places[:] = [place for place in places if place.link is not link]
            if not places:
                del self._places[block_hash]
        link.close()
