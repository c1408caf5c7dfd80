"""The other ranks of an engine as processes of this machine: started, watched, ended."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from pathlib import Path

from quire.core import errors
from quire.core.child_process import ChildProcess, ending_text
from quire.core.config import EngineConfig
from quire.core.errors import ModelLoadError, QuireError, RankDeadError
from quire.core.log import get_logger
from quire.distributed.shared_memory_group import SharedMemory
from quire.runner.parallel.commands import Command, encode
from quire.runner.parallel.handshake import RankFailed, RankLoaded, StartRank, receive, send

log = get_logger(__name__)

#: How long a rank may take to end by itself.
_LAST_WORDS_SECONDS = 2.0


class LocalRanks:
    """Ranks 1 to ``size - 1``; this process is rank 0.

    The thread that makes it must outlive it: the kernel ends the ranks with that thread.

    Args:
        folder: The checkpoint.
        config: Settings of each rank.

    Attributes:
        group: All ranks, as rank 0.
        failure: Readable once a rank is gone.

    Raises:
        OSError: A process cannot be started.
    """

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        size = config.parallel.layout.size
        self._memory = SharedMemory.create(size)
        self.group = self._memory.group()
        self._ring = self._memory.commands()
        self._error: RankDeadError | None = None
        self._closing = False
        self.failure, self._fail = socket.socketpair()
        self._children: list[ChildProcess] = []
        try:
            for rank in range(1, size):
                child = ChildProcess("quire.runner.parallel.rank_process:run")
                self._children.append(child)
                socket.send_fds(child.socket, [b"\0"], [self._memory.descriptor])
                send(child.socket, StartRank(rank, str(folder), config))
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="quire-ranks", daemon=True)

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank from 1 on."""
        return [child.pid for child in self._children]

    def wait_until_loaded(self) -> list[RankLoaded]:
        """Return what each rank has loaded, when all have; they are watched from then on.

        Raises:
            QuireError: One could not load.
        """
        found = []
        for rank, child in enumerate(self._children, 1):
            try:
                message = receive(child.socket, RankLoaded | RankFailed)  # type: ignore[arg-type]
            except (EOFError, OSError):
                message = None
            if not isinstance(message, RankLoaded):
                raise self._not_loaded(rank, child, message)
            found.append(message)
        self._watcher.start()
        return found

    def _not_loaded(self, rank: int, child: ChildProcess, told: RankFailed | None) -> QuireError:
        if told is None:
            ending = ending_text(child.end(at_once=False))
            return ModelLoadError(
                f"[rank {rank}] it ended while it loaded ({ending}); see the log."
            )
        kind: type[QuireError] = getattr(errors, told.kind, ModelLoadError)
        return kind(told.text)

    def announce(self, command: Command) -> None:
        """Tell all ranks a command.

        Raises:
            RankDeadError: One of them is gone.
        """
        self._ring.send([encode(command)])

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
        self._memory.fail(0, "the engine ends")
        for child in self._children:
            with suppress(OSError):
                child.socket.shutdown(socket.SHUT_RDWR)
        for child in self._children:
            child.end(at_once=False)
        if self._watcher.is_alive():
            self._watcher.join()
        self.failure.close()
        self._fail.close()
        self._memory.close()

    def _watch(self) -> None:
        """Wait until a rank says that it ends, or is gone; then no rank can go on."""
        poll = select.poll()
        ranks = {child.socket.fileno(): rank for rank, child in enumerate(self._children, 1)}
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        found = poll.poll()
        if self._closing:
            return
        rank = ranks[found[0][0]]
        child, reason = self._children[rank - 1], ""
        try:
            told = receive(child.socket, RankFailed)
            reason = told.text
        except (EOFError, OSError):
            reason = "its process has died"
        self._error = RankDeadError(f"[rank {rank}] {reason} (process {child.pid}).")
        log.error("%s", self._error)
        self._memory.fail(rank, str(self._error))
        with suppress(OSError):
            self._fail.send(b"\0")
