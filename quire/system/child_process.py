"""Child processes: fresh interpreters that serve a socket and end with their parent."""

from __future__ import annotations

import ctypes
import faulthandler
import io
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module

_CODE = (
    "import sys; sys.path[:] = sys.argv[6:]; from quire.system.child_process import _main; "
    "_main(*sys.argv[1:6])"
)
_PR_SET_PDEATHSIG = 1
_DUMP_SIGNAL = signal.SIGUSR1
#: Seconds that a stuck process may take to write its stacks, and is silent after writing them.
DUMP_SECONDS = 5.0
_SILENT_SECONDS = 0.3
#: Seconds that a process may take to end by itself after its socket was closed.
SHUTDOWN_GRACE_SECONDS = 2.0


class ChildProcess:
    """A process that runs a function on one end of a socket pair.

    The thread that makes it must outlive it: on Linux the kernel kills it with that thread.

    Args:
        target: Function to run, as ``module:function``, imported by the child alone; it gets the
            child's end of the socket.
        quiet: Whether what it writes to stderr is dropped.

    Attributes:
        socket: The parent's end. When it is closed, ``target`` should return.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, target: str, *, quiet: bool = False) -> None:
        self.socket, theirs = socket.socketpair()
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._stacks = io.FileIO(read)
        with theirs, open(write, "wb") as stacks:
            # A fresh interpreter: forking would copy locks that other threads hold.
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _CODE, *target.split(":")),
                    *(str(theirs.fileno()), str(stacks.fileno()), str(os.getpid())),
                    *sys.path,
                ],
                pass_fds=[theirs.fileno(), stacks.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if quiet else None,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def stacks(self) -> str:
        """Return its Python stacks, even when it is stopped or busy; empty if none come in time."""
        for number in (_DUMP_SIGNAL, signal.SIGCONT):
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
        end, text = time.monotonic() + DUMP_SECONDS, b""
        while time.monotonic() < end:
            time.sleep(_SILENT_SECONDS)
            part = self._stacks.read(1 << 20)
            text += part or b""
            if part == b"" or (text and not part):  # it has ended, or has nothing more to say
                break
        return text.decode(errors="replace")

    def wait(self, seconds: float = SHUTDOWN_GRACE_SECONDS) -> int | None:
        """Return the exit code of a process that ends by itself; None where it does not in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill it, if it lives, and leave it to :meth:`end` to wait for it; any thread may."""
        self._process.kill()

    def end(self, *, at_once: bool) -> int:
        """Close the socket and wait for the process; return its exit code, below 0 of a signal.

        Args:
            at_once: Whether it is killed at once, not after :data:`SHUTDOWN_GRACE_SECONDS`.
        """
        self.socket.close()
        self._stacks.close()
        if at_once:
            self._process.kill()
        code = self.wait(SHUTDOWN_GRACE_SECONDS)
        if code is None:
            self._process.kill()
            code = self._process.wait()
        return code

    def ending(self, *, at_once: bool) -> str:
        """Do what :meth:`end` does; return how the process has ended as text."""
        return ending_text(self.end(at_once=at_once))


def ending_text(code: int) -> str:
    """Return an exit code as text."""
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _main(module: str, function: str, descriptor: str, stacks: str, parent: str) -> None:
    """Run the target in the child."""
    _end_with_parent(int(parent))
    # A terminal's Ctrl-C and a supervisor's SIGTERM reach the whole group. The server drains, and
    # closes the socket when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # In C and on the spot, so that it works while native code runs or a lock is held.
    faulthandler.register(_DUMP_SIGNAL, file=int(stacks), all_threads=True)
    getattr(import_module(module), function)(socket.socket(fileno=int(descriptor)))


def _end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process with the thread that started it, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)
