"""Processes that do, within limits, work whose cost cannot be known before.

Each answers messages one after another. What takes too long, or more memory than there is, ends its
process and nothing else; the next message gets a new one.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

from quire.system.child_process import ChildProcess, ending_text

#: A process lost to anything but its message says nothing of it: another one tries again, once.
MAX_TRIES = 2
#: What a process gets to start and to read its first message.
START_SECONDS = 120.0
#: Seconds in which one that is at work may become free before another is started: short work is
#: done sooner than that, and a start takes a core from everything else for longer.
SPARE_SECONDS = 0.02
#: Niceness of a process that gives way: nearly all that others want.
_NICENESS = 15
#: How a process ends that its message has ended: stack, memory, computing time.
_OVER_LIMITS = {
    *(-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGXCPU),
    errno.ENOMEM,
}


class SandboxDied(Exception):
    """A message ended all processes that tried; ``code`` is how the last one ended."""

    def __init__(self, code: int) -> None:
        super().__init__(ending_text(code))
        self.code = code

    @property
    def is_over_limits(self) -> bool:
        """Whether the message has ended them, by what it takes."""
        return self.code in _OVER_LIMITS


class Sandbox:
    """A process that answers messages; used by one thread at a time.

    Args:
        target: Function to run, as ``module:function``, which gets the socket; it answers its first
            message with an empty one when it is ready, and each one after that.
        first: The first message.
        patience: Seconds of a message after which the process gives way to all others; as it cannot
            take that back, it ends with its answer then.

    Attributes:
        is_alive: Whether the process may be asked.

    Raises:
        OSError, EOFError: The process does not start.
    """

    def __init__(self, target: str, first: bytes, patience: float = math.inf) -> None:
        # What a message that breaks it writes to stderr is of no use: the client is told.
        self._process = ChildProcess(target, quiet=True)
        self._link = Connection(self._process.socket.detach())
        self._patience = patience
        self.is_alive = True
        try:
            self._link.send_bytes(first)
            if not self._link.poll(START_SECONDS):
                raise OSError("it does not start")
            self._link.recv_bytes()
        except (OSError, EOFError):
            self.end()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, message: bytes, seconds: float) -> bytes | None:
        """Return the answer to a message; None when it takes too long, which ends the process.

        Raises:
            EOFError, OSError: The process has died.
        """
        self._link.send_bytes(message)
        if self._link.poll(min(seconds, self._patience)):
            return self._link.recv_bytes()
        answer = None
        if seconds > self._patience:
            with suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, self.pid, _NICENESS)
            if self._link.poll(seconds - self._patience):
                answer = self._link.recv_bytes()
        self.end()
        return answer

    def kill(self) -> None:
        """Kill the process; a thread that asks it finds that it has died."""
        self._process.kill()

    def end(self) -> int:
        """Kill it, if it lives; return its exit code, that of a signal below 0."""
        self.is_alive = False
        self._link.close()
        return self._process.end(at_once=True)


class Sandboxes:
    """Processes that are started when needed; as many as threads have long work for at once.

    Args:
        start: Function that makes a sandbox, in the thread that asks, which must outlive it.
    """

    def __init__(self, start: Callable[[], Sandbox]) -> None:
        self._start = start
        self._idle: SimpleQueue[Sandbox] = SimpleQueue()
        self._has_started = False
        self._closed = False

    def ask(self, message: bytes, seconds: float) -> bytes | None:
        """Return the answer of a process to a message; None when it takes too long.

        Args:
            message: The message; a process that dies of it is followed by another one.
            seconds: Time of all processes together, once they have started.

        Raises:
            SandboxDied: The message ends its process, time after time.
            OSError, EOFError: No process starts.
        """
        ending = 0
        for _ in range(MAX_TRIES):
            sandbox, began = self._take(), time.monotonic()
            try:
                return sandbox.ask(message, seconds)
            except (EOFError, OSError):
                ending = sandbox.end()
            except BaseException:  # an interrupt: the next message would get this one's answer
                sandbox.end()
                raise
            finally:
                self._give_back(sandbox)
            seconds -= time.monotonic() - began
            if self._closed or seconds <= 0:
                break
        raise SandboxDied(ending)

    def close(self) -> None:
        """End the processes; one that is asked still ends after its answer."""
        self._closed = True
        self._end_idle()

    def _take(self) -> Sandbox:
        with suppress(Empty):
            return self._idle.get(timeout=SPARE_SECONDS if self._has_started else 0.0)
        sandbox = self._start()
        self._has_started = True
        return sandbox

    def _give_back(self, sandbox: Sandbox) -> None:
        if sandbox.is_alive:
            self._idle.put(sandbox)
        if self._closed:
            self._end_idle()

    def _end_idle(self) -> None:
        while True:
            try:
                self._idle.get_nowait().end()
            except Empty:
                return


def limit_memory(more_bytes: int) -> None:
    """Let this process take that much more than it has, in bytes; called in a sandbox."""
    _limit(resource.RLIMIT_AS, _address_space() + more_bytes)


def limit_computing(seconds: float) -> None:
    """Limit this process to about twice that much computing from now on; then the kernel ends it.

    For a parent that is gone and keeps no time.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + 2 * seconds + 1))


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    with suppress(ValueError, OSError):  # a lower one is set already, or the system has none
        resource.setrlimit(what, (value, hard))


def _address_space() -> int:
    """Return the bytes of addresses in use; a machine's worth where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 2**40
