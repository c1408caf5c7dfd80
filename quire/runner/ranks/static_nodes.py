"""Ranks on machines that were started one by one; those of this machine are its children.

Machine 0 has the driver, which waits for all others; they connect to it, and connect anew when it
is restarted.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from quire.core.errors import ModelLoadError, QuireError
from quire.runner.ranks.handshake import StartFailed, receive
from quire.runner.ranks.rendezvous import Address
from quire.settings.parallel_options import ParallelOptions
from quire.system import env
from quire.system.background_stream import use_background_stderr, wait_until_logged
from quire.system.channel import send
from quire.system.child_process import ChildProcess, ending_text
from quire.system.connections import readable
from quire.system.log import get_logger

log = get_logger(__name__)


class GoTo(msgspec.Struct, frozen=True):
    """The rank that a process is to be, and its driver.

    Attributes:
        address: Address that the driver listens at.
        key: Key that ranks must have.
        rank: Number of the rank.
        folder: The checkpoint on this machine; None for the path that the driver uses.
    """

    address: Address
    key: str
    rank: int
    folder: str | None


def run(connection: socket.socket) -> None:
    """Serve as the rank that the parent process names."""
    use_background_stderr()
    try:
        told = receive(connection, GoTo)
    except (EOFError, OSError):
        return
    from quire.runner.ranks.remote_rank import serve_driver

    try:
        serve_driver(told.address, told.key, told.rank, folder=told.folder)
    except QuireError as error:
        wait_until_logged()
        with suppress(OSError):
            send(connection, StartFailed.of(error))


class NodeRanks:
    """Processes of this machine, each a rank of an engine whose driver may be elsewhere.

    The thread that creates it must outlive it.

    Args:
        options: Layout of the ranks, and the address of their driver.
        folder: The checkpoint on this machine.
    """

    def __init__(self, options: ParallelOptions, folder: Path | None) -> None:
        address = (options.master_addr, options.master_port)
        key = env.get("QUIRE_CLUSTER_KEY") or ""
        own = [rank for rank in options.ranks_of(options.node_rank) if rank > 0]
        self._children: dict[int, ChildProcess] = {}
        try:
            for rank in own:
                child = ChildProcess("quire.runner.ranks.static_nodes:run")
                self._children[rank] = child
                told = GoTo(address, key, rank, None if folder is None else str(folder))
                send(child.socket, told)
        except BaseException:
            self.close()
            raise

    def ended(self, seconds: float, wake: socket.socket | None = None) -> int | None:
        """Wait for a rank to end, and return it; None where none ends in that time."""
        sockets = {child.socket: rank for rank, child in self._children.items()}
        waited = [*sockets, *([] if wake is None else [wake])]
        for found in readable(waited, seconds):
            if found is not wake:
                return sockets[found]
        return None

    def error_of(self, rank: int) -> StartFailed | None:
        """Return the report of a rank that has ended, if there is one."""
        with suppress(EOFError, OSError):
            return receive(self._children[rank].socket, StartFailed)
        return None

    def why_gone(self, rank: int) -> str:
        """Return the reason why the process of a rank of this machine has ended."""
        child = self._children.get(rank)
        code = None if child is None else child.wait()
        return "" if code is None else f"its process has died, {ending_text(code)}"

    def close(self) -> None:
        """End all of them."""
        for child in self._children.values():
            child.end(at_once=True)


class StaticNodes:
    """The ranks of all machines, which the driver starts or waits for.

    See :class:`quire.runner.ranks.remote_ranks.Launcher`.

    Args:
        options: Layout of the ranks, and the address that the driver listens at.
    """

    def __init__(self, options: ParallelOptions) -> None:
        self._options = options
        self.address: Address = (options.master_addr, options.master_port)
        self.key = env.get("QUIRE_CLUSTER_KEY") or ""
        self._own: NodeRanks | None = None

    def start(self, address: Address) -> None:
        """Start the ranks of this machine; other machines start their own."""
        log.info(
            "[parallel] waiting at %s:%d for the ranks of %d machines",
            *address,
            self._options.nnodes,
        )
        self._own = NodeRanks(self._options, None)

    def check(self) -> None:
        """Check that no rank of this machine has ended.

        Raises:
            ModelLoadError: A rank has ended.
        """
        if self._own is not None and (rank := self._own.ended(0.0)) is not None:
            why = self._own.why_gone(rank) or "see the log"
            raise ModelLoadError(f"[rank {rank}] it ended before all had come: {why}.")

    def why_gone(self, rank: int) -> str:
        """Return the reason why a process of this machine has ended."""
        return "" if self._own is None else self._own.why_gone(rank)

    def close(self) -> None:
        """End the ranks of this machine."""
        if self._own is not None:
            self._own.close()


def run_node(options: ParallelOptions, folder: Path, is_ending: Callable[[], bool]) -> None:
    """Run the ranks of a machine without a driver, which serve the one on machine 0.

    When the driver is gone, new ranks wait for the next driver.

    Args:
        options: Layout of the ranks, and the address of their driver.
        folder: The checkpoint on this machine.
        is_ending: Call that returns True once the ranks are to end; it is called often.

    Raises:
        QuireError: A rank could not start, or no driver was found.
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
            why = ranks.why_gone(ended) or "the reason is not known"
            log.warning("[rank %d] it has ended (%s); its machine's ranks start again", ended, why)
        finally:
            ranks.close()
