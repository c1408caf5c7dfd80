"""Ranks on machines that were started one by one: those of this machine as children of it.

Machine 0 has the driver, which waits for all others; they go to it, and go again when it is started
again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from quire.core import env
from quire.core.background_stream import use_background_stderr, wait_until_logged
from quire.core.child_process import ChildProcess, ending_text
from quire.core.errors import ModelLoadError, QuireError
from quire.core.log import get_logger
from quire.core.parallel_options import ParallelOptions
from quire.distributed.connections import readable
from quire.runner.parallel.handshake import StartFailed, receive, send
from quire.runner.parallel.meeting import Address

log = get_logger(__name__)


class GoTo(msgspec.Struct, frozen=True):
    """Which rank a process is to be, and whose.

    Attributes:
        address: Where the driver listens.
        key: That ranks show.
        rank: Its number.
        folder: The checkpoint on this machine; None where the driver's is.
    """

    address: Address
    key: str
    rank: int
    folder: str | None


def run(connection: socket.socket) -> None:
    """Be the rank that the parent process says."""
    use_background_stderr()
    try:
        told = receive(connection, GoTo)
    except (EOFError, OSError):
        return
    from quire.runner.parallel.remote_rank import serve_driver

    try:
        serve_driver(told.address, told.key, told.rank, folder=told.folder)
    except QuireError as error:
        wait_until_logged()
        with suppress(OSError):
            send(connection, StartFailed.of(error))


class NodeRanks:
    """Processes of this machine, each a rank of an engine whose driver may be elsewhere.

    The thread that makes it must outlive it.

    Args:
        options: Which ranks, and where their driver is.
        folder: The checkpoint on this machine.
    """

    def __init__(self, options: ParallelOptions, folder: Path | None) -> None:
        address = (options.master_addr, options.master_port)
        key = env.get("QUIRE_CLUSTER_KEY") or ""
        own = [rank for rank in options.ranks_of(options.node_rank) if rank > 0]
        self._children: dict[int, ChildProcess] = {}
        try:
            for rank in own:
                child = ChildProcess("quire.runner.parallel.static_nodes:run")
                self._children[rank] = child
                told = GoTo(address, key, rank, None if folder is None else str(folder))
                send(child.socket, told)
        except BaseException:
            self.close()
            raise

    def ended(self, seconds: float, wake: socket.socket | None = None) -> int | None:
        """Return a rank that has ended, within that time; None for none."""
        sockets = {child.socket: rank for rank, child in self._children.items()}
        waited = [*sockets, *([] if wake is None else [wake])]
        for found in readable(waited, seconds):
            if found is not wake:
                return sockets[found]
        return None

    def error_of(self, rank: int) -> StartFailed | None:
        """Return what a rank that has ended says of it, if it says anything."""
        with suppress(EOFError, OSError):
            return receive(self._children[rank].socket, StartFailed)
        return None

    def why_gone(self, rank: int) -> str:
        """Return how the process of a rank of this machine has ended."""
        child = self._children.get(rank)
        code = None if child is None else child.wait()
        return "" if code is None else f"its process has died, {ending_text(code)}"

    def close(self) -> None:
        """End all of them."""
        for child in self._children.values():
            child.end(at_once=True)


class StaticNodes:
    """The ranks of all machines, as the driver starts and awaits them.

    See :class:`quire.runner.parallel.remote_ranks.Launcher`.

    Args:
        options: Which ranks there are, and where the driver listens.
    """

    def __init__(self, options: ParallelOptions) -> None:
        self._options = options
        self.address: Address = (options.master_addr, options.master_port)
        self.key = env.get("QUIRE_CLUSTER_KEY") or ""
        self._own: NodeRanks | None = None

    def start(self, address: Address) -> None:
        """Start those of this machine; others are started there."""
        log.info(
            "[parallel] waiting at %s:%d for the ranks of %d machines",
            *address,
            self._options.nnodes,
        )
        self._own = NodeRanks(self._options, None)

    def check(self) -> None:
        """Return as long as none of this machine has ended.

        Raises:
            ModelLoadError: One has.
        """
        if self._own is not None and (rank := self._own.ended(0.0)) is not None:
            why = self._own.why_gone(rank) or "see the log"
            raise ModelLoadError(f"[rank {rank}] it ended before all had come: {why}.")

    def why_gone(self, rank: int) -> str:
        """Return how a process of this machine has ended."""
        return "" if self._own is None else self._own.why_gone(rank)

    def close(self) -> None:
        """End those of this machine."""
        if self._own is not None:
            self._own.close()


def run_node(options: ParallelOptions, folder: Path, is_ending: Callable[[], bool]) -> None:
    """Have the ranks of a machine without a driver serve the one on machine 0, again and again.

    When the driver is gone, new ones wait for the next.

    Args:
        options: Which ranks, and where their driver is.
        folder: The checkpoint on this machine.
        is_ending: Asked often; nothing more is to be served.

    Raises:
        QuireError: A rank could not be what it is to be, or no driver has come.
    """
    while not is_ending():
        ranks = NodeRanks(options, folder)
        try:
            while (ended := ranks.ended(0.25)) is None:
                if is_ending():
                    return
            failure = ranks.error_of(ended)
            if failure is not None:
                raise failure.error()
            why = ranks.why_gone(ended) or "no more is known"
            log.warning("[rank %d] it has ended (%s); all of this machine begin again", ended, why)
        finally:
            ranks.close()
