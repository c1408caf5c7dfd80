"""The other ranks of an engine, which its driver commands, watches and ends."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from quire.core.errors import ModelLoadError, RankDeadError
from quire.distributed.command_ring import CommandChannel
from quire.distributed.group import Group
from quire.runner.ranks.commands import Command, encode
from quire.runner.ranks.handshake import RankLoaded, StartFailed, receive
from quire.system.log import get_logger

log = get_logger(__name__)


class World(Protocol):
    """Connections of a process to all ranks."""

    def group(self, ranks: Sequence[int] | None = None) -> Group:
        """Return the group of all ranks, or that of some; this rank is one of them."""
        ...

    def commands(self) -> CommandChannel:
        """Return this rank's end of the channel for rank 0's commands to all others."""
        ...

    def fail(self, rank: int, reason: str) -> None:
        """End waits of all ranks with an error: ``rank`` is lost. From any thread."""
        ...

    def close(self) -> None:
        """Close the connections and release shared memory."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank as its driver sees it.

    Attributes:
        rank: Number of the rank.
        connection: Socket that is readable when the rank sends something, or is gone.
        place: The rank's process, for people: ``process 17`` or ``process 17 on node-b``.
        why_gone: Call that returns the known reason of its end, or empty; it may wait a little.
    """

    rank: int
    connection: socket.socket
    place: str
    why_gone: Callable[[], str]


class Ranks:
    """Ranks 1 to ``size - 1``; this process is rank 0.

    Args:
        peers: The ranks, in their order.
        world: The connections to them.
        end: Call that ends the processes that this one has started.

    Attributes:
        failure: Socket that is readable once a rank is gone.
    """

    def __init__(self, peers: Sequence[Peer], world: World, end: Callable[[], None]) -> None:
        self._peers, self._world, self._end = peers, world, end
        self._commands = world.commands()
        self._error: RankDeadError | None = None
        self._closing = False
        self.failure, self._fail = socket.socketpair()
        self._watcher = threading.Thread(target=self._watch, name="quire-ranks", daemon=True)

    def group(self, ranks: Sequence[int] | None = None) -> Group:
        """Return the group of all ranks, or that of some, as rank 0."""
        return self._world.group(ranks)

    def wait_until_loaded(self) -> list[RankLoaded]:
        """Return each rank's report once all have loaded; they are watched from then on.

        Raises:
            QuireError: A rank could not load its part.
        """
        found = []
        for peer in self._peers:
            try:
                message = receive(peer.connection, RankLoaded | StartFailed)  # type: ignore[arg-type]
            except (EOFError, OSError):
                why = peer.why_gone() or "see its log"
                raise ModelLoadError(
                    f"[rank {peer.rank}] it ended while it loaded: {why} ({peer.place})."
                ) from None
            if not isinstance(message, RankLoaded):
                raise message.error()
            found.append(message)
        self._watcher.start()
        return found

    def announce(self, command: Command) -> None:
        """Send all ranks a command.

        Raises:
            RankDeadError: A rank is gone.
        """
        self._commands.send([encode(command)])

    def check(self) -> None:
        """Check that all ranks live.

        Raises:
            RankDeadError: A rank is gone.
        """
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End all ranks."""
        self._closing = True
        self._world.fail(0, "the engine ends")
        for peer in self._peers:
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
        self._end()
        if self._watcher.is_alive():
            self._watcher.join()
        for peer in self._peers:
            peer.connection.close()
        self.failure.close()
        self._fail.close()
        self._world.close()

    def _watch(self) -> None:
        """Wait until a rank reports its end, or is gone; then no rank can continue."""
        poll = select.poll()
        peers = {peer.connection.fileno(): peer for peer in self._peers}
        for descriptor in peers:
            poll.register(descriptor, select.POLLIN)
        found = poll.poll()
        if self._closing:
            return
        peer = peers[found[0][0]]
        try:
            reason = receive(peer.connection, StartFailed).text
        except (EOFError, OSError):
            reason = peer.why_gone() or "its process has died"
        self._error = RankDeadError(f"[rank {peer.rank}] {reason} ({peer.place}).")
        log.error("%s", self._error)
        self._world.fail(peer.rank, str(self._error))
        with suppress(OSError):
            self._fail.send(b"\0")
