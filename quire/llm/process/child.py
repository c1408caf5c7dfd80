"""One run of the engine's process: started, spoken to, watched and ended; not started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from quire.core.log import get_logger
from quire.llm.process.engine_loop import DUMP_SIGNAL
from quire.llm.process.messages import MessageSocket, Start, ToEngine, from_engine

log = get_logger(__name__)

_CODE = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from quire.llm.process.engine_loop import run; run(int(sys.argv[1]), int(sys.argv[2]))"
)
#: What a stuck process gets to write its stacks, and one that was hung up on to end by itself.
DUMP_SECONDS = 0.5
FAREWELL_SECONDS = 2.0


class EngineChild:
    """A process that loads a model and takes requests.

    The thread that makes it must outlive it: on Linux the kernel kills it with that thread.

    Args:
        start: What to load.
    """

    def __init__(self, start: Start) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # A fresh interpreter: forking would copy locks that other threads hold.
            command = [sys.executable, "-c", _CODE, str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(
                [*command, *sys.path], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._link = MessageSocket(ours, from_engine)
        self._lock = threading.Lock()  # of what is sent
        self.send(start)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent by the next :meth:`receive`."""
        return self._link.has_unsent

    def send(self, message: ToEngine) -> None:
        """Send; that the process is gone shows in :meth:`receive`."""
        with self._lock, suppress(OSError):
            self._link.send(message)

    def receive(self, timeout: float, wake: socket.socket) -> list[Any]:
        """Return what has arrived, after waiting for it, for ``wake`` or for the time's end.

        Raises:
            EOFError: The process is gone, and what it said has been returned.
        """
        self._link.wait(timeout, wake)
        with self._lock, suppress(OSError):
            self._link.flush()
        return list(self._link.receive())

    def dump_stacks(self) -> None:
        """Have it write its Python stacks to stderr, stopped or busy as it may be."""
        for number in (DUMP_SIGNAL, signal.SIGCONT):
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
        time.sleep(DUMP_SECONDS)

    def end(self, *, at_once: bool) -> str:
        """Hang up and wait for its end; return how it ended, in words."""
        self._link.close()
        if at_once:
            self._process.kill()
        try:
            code = self._process.wait(FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code < 0:
            with suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"
