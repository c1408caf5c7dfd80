"""The other ranks of an engine, as its driver knows them: told, watched, ended."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from quire.core.errors import ModelLoadError, RankDeadError
from quire.core.log import get_logger
from quire.distributed.command_ring import CommandChannel
from quire.distributed.group import Group
from quire.runner.parallel.commands import Command, encode
from quire.runner.parallel.handshake import RankLoaded, StartFailed, receive

log = get_logger(__name__)


class World(Protocol):
    """How all ranks reach each other; this process's end."""

    def group(self, ranks: Sequence[int] | None = None) -> Group:
        """Return all ranks, or some of which this is one, as this one."""
        ...

    def commands(self) -> CommandChannel:
        """Return the driver's end for commands to all others, or another rank's end of it."""
        ...

    def fail(self, rank: int, reason: str) -> None:
        """End waits of all ranks with an error: ``rank`` is lost. From any thread."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank.

    Attributes:
        rank: Which.
        connection: Readable when it says something, or is gone.
        place: Where, for people: ``process 17`` or ``process 17 on node-b``.
        why_gone: Returns what is known of its end, empty for nothing; may wait a little.
    """

    rank: int
    connection: socket.socket
    place: str
    why_gone: Callable[[], str]


class Ranks:
    """Ranks 1 to ``size - 1``; this process is rank 0.

    Args:
        peers: By rank.
        world: With them.
        end: Ends their processes, as far as this one started them.

    Attributes:
        failure: Readable once a rank is gone.
    """

    def __init__(self, peers: Sequence[Peer], world: World, end: Callable[[], None]) -> None:
        self._peers, self._world, self._end = peers, world, end
        self._commands = world.commands()
        self._error: RankDeadError | None = None
        self._closing = False
        self.failure, self._fail = socket.socketpair()
        self._watcher = threading.Thread(target=self._watch, name="quire-ranks", daemon=True)

    def group(self, ranks: Sequence[int] | None = None) -> Group:
        """Return all ranks, or some, as rank 0."""
        return self._world.group(ranks)

    def wait_until_loaded(self) -> list[RankLoaded]:
        """Return what each rank has loaded, when all have; they are watched from then on.

        Raises:
            QuireError: One could not load.
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
        """Tell all ranks a command.

        Raises:
            RankDeadError: One of them is gone.
        """
        self._commands.send([encode(command)])

    def check(self) -> None:
        """Return when all ranks live.

        Raises:
            RankDeadError: One of them is gone.
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
        """Wait until a rank says that it ends, or is gone; then no rank can go on."""
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
