"""``python -m`` and ``-c`` from an interpreter that has imported Quire, for processes to kill.

:class:`Preforked` stands where a test has ``subprocess.Popen([sys.executable, "-m", ...])``::

    process = Preforked([sys.executable, "-m", "quire.cli.main", "serve"], stderr=PIPE, text=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0

The first one starts a process with one thread that imports what ``quire serve`` does (about a
second), and each is a fork of that (``tests/forking.py``): it has a pid, an exit code and an end of
its own, is a child of this process, and is as ``python -m`` leaves it (``__main__``, ``sys.argv``,
working folder, environment, signals, standard streams), less the second of imports. It ends as an
interpreter does: the fork runs out of the main module. Engines, ranks and sandboxes that it starts
(:class:`~quire.system.child_process.ChildProcess`) are such forks again.

What differs from a fresh interpreter, so that a test of it needs ``subprocess``:

- It ends with this process, and its command line (``/proc/PID/cmdline``) is that of the process
  that forks; its name is the module's.
- It has a child more, named :data:`NURSERY`, of which its own children are forked.
- Standard input is the null device unless it is told otherwise.
- ``sys.modules`` has more in it, and a module's top level has run before the environment was set.
  Variables that are read there (:data:`READ_EARLY`) get a process of their own to fork from.

Linux alone has what this needs: a process that adopts its grandchildren.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import psutil

ROOT = Path(__file__).parents[1]
#: Beginnings of the variables that are read when an interpreter starts or a module is imported;
#: one with a ``=`` is a whole name.
READ_EARLY = (
    *("COV", "GLIBC", "LANG=", "LANGUAGE=", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_"),
    *("PROMETHEUS", "PYTHON", "QUIRE_CPU_ISA", "QUIRE_LOG_LEVEL"),
)
#: Those that a program reads when it imports torch: only a process that forks with torch has.
_READ_BY_TORCH = ("MKL_", "OMP_")
#: Name of the processes that fork children of another one.
NURSERY = "nursery"
#: Descriptors of a request: the one for the pid, the standard streams, and those passed on.
MOST_DESCRIPTORS = 12
SIZE, PID = struct.Struct("<I"), struct.Struct("<i")
_CODE = "import sys; from tests.forking import serve; serve(int(sys.argv[1]), sys.argv[2:])"
#: Words of programs whose ranks torch joins: they would import it for longer than all else.
OF_TORCH = {"--nnodes", "torch"}
_PR_SET_CHILD_SUBREAPER = 36


class Preforked:
    """A running ``python -m module arguments``, with what tests use of ``subprocess.Popen``.

    Args:
        args: The interpreter, ``-m`` or ``-c``, the module or the code, and its arguments.
        cwd: Folder that it runs in. None: this process's.
        env: Its whole environment. None: this process's.
        stdin: ``subprocess.PIPE``, an open file, or ``DEVNULL``.
        stdout: ``subprocess.PIPE`` or ``DEVNULL``, an open file, or None for this process's.
        stderr: The same, or ``subprocess.STDOUT``.
        text: Pipes are read as text.
        start_new_session: It leads a session of its own.
        pass_fds: Descriptors that it has, too, of the same numbers.

    Attributes:
        pid: Process id.
        returncode: Exit code, below 0 of a signal; None as long as none was asked for and had.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        assert args[0] == sys.executable and args[1] in ("-m", "-c"), args
        self.args = args
        self.returncode: int | None = None
        environment = dict(os.environ if env is None else env)
        request = {
            "arguments": list(args[1:]),
            "cwd": os.fspath(cwd or os.getcwd()),
            "environment": environment,
            "session": start_new_session,
            "descriptors": list(pass_fds),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        merged = stderr == subprocess.STDOUT
        self.stdin, their_input = _stream(stdin, 0, text)
        self.stdout, output = _stream(stdout, 1, text)
        self.stderr, errors = (None, output) if merged else _stream(stderr, 2, text)
        streams = [their_input, output, errors]
        try:
            self.pid = _origin(environment, args).fork(request, [*streams, *pass_fds])
        finally:
            for descriptor in set(streams) - {0, 1, 2}:
                os.close(descriptor)
        self._end = os.pidfd_open(self.pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # fetched elsewhere
                    pid, status = self.pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._end)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not in ``timeout`` seconds.
        """
        if self.poll() is None:
            ending = select.poll()
            ending.register(self._end, select.POLLIN)
            ending.poll(None if timeout is None else timeout * 1000)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return code

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write to stdin and close it, read the other pipes to their ends, and wait.

        Returns:
            What stdout's and stderr's pipes had; None without one.
        """
        found: dict[int, Any] = {}
        pipes = [(i, pipe) for i, pipe in enumerate((self.stdout, self.stderr)) if pipe]
        readers = [
            threading.Thread(target=lambda i=i, pipe=pipe: found.update({i: pipe.read()}))
            for i, pipe in pipes
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin:
                if input:
                    self.stdin.write(input)
        self.wait(timeout)
        for reader in readers:
            reader.join()
        for _, pipe in pipes:
            pipe.close()
        return found.get(0), found.get(1)

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Preforked:
        return self

    def __exit__(self, *exception: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def _stream(wanted: int | IO[Any] | None, own: int, text: bool) -> tuple[IO[Any] | None, int]:
    """Return this process's end of a standard stream, if any, and the descriptor of the other."""
    if wanted is None:
        return None, own
    if wanted == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_RDWR)
    if wanted != subprocess.PIPE:
        return None, os.dup(wanted if isinstance(wanted, int) else wanted.fileno())
    read, write = os.pipe()
    if own == 0:
        return open(write, "w" if text else "wb"), read
    return open(read, "r" if text else "rb"), write


class Origin:
    """A process that forks, seen from one whose children it makes.

    Args:
        control: Where it takes requests.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Return the pid of a new child of this process, which becomes what is requested.

        Args:
            request: See :class:`Preforked`.
            descriptors: Standard streams, then those that have a number in ``request``.
        """
        data = json.dumps(request).encode()
        answer, theirs = socket.socketpair()
        with _adopting, answer, theirs:
            passed = [theirs.fileno(), *descriptors]
            socket.send_fds(self._control, [SIZE.pack(len(data))], passed)
            self._control.sendall(data)
            theirs.close()
            told = answer.recv(PID.size, socket.MSG_WAITALL)
        assert len(told) == PID.size, "the process that forks has ended"
        pid: int = PID.unpack(told)[0]
        return pid


class _Adopting:
    """While it is open, this process becomes the parent of grandchildren whose parent ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = ctypes.CDLL(None).prctl

    def __enter__(self) -> None:
        self._lock.acquire()
        self._set(_PR_SET_CHILD_SUBREAPER, 1)

    def __exit__(self, *exception: object) -> None:
        self._set(_PR_SET_CHILD_SUBREAPER, 0)
        self._lock.release()


_adopting = _Adopting()
#: The process that forks, by the variables of :data:`READ_EARLY` and the further modules it has.
_origins: dict[tuple[Any, ...], Origin] = {}


def begins_with(name: str, beginnings: tuple[str, ...]) -> bool:
    """Return whether a variable is one of those that :data:`READ_EARLY` writes so."""
    return f"{name}=".startswith(beginnings)


def _early(environment: Mapping[str, str], *, torch: bool) -> tuple[tuple[str, str], ...]:
    read = [name for name in READ_EARLY if torch or name not in _READ_BY_TORCH]
    found = [row for row in environment.items() if begins_with(row[0], tuple(read))]
    return tuple(sorted(row for row in found if row[0] != "PYTHONPATH"))  # forks do what it says


def set_origin(origin: Origin) -> None:
    """Fork from this one from now on, which has this process's environment, and no other."""
    _origins.clear()
    _origins[(), _early(os.environ, torch=False)] = origin


def _origin(environment: Mapping[str, str], args: Sequence[str]) -> Origin:
    """Return the process that forks for an environment, started when first asked for."""
    modules = ("torch.distributed",) if OF_TORCH.intersection(args) else ()
    early = _early(environment, torch=bool(modules))
    if (modules, early) not in _origins:
        control, theirs = socket.socketpair()
        plain = {k: v for k, v in os.environ.items() if not begins_with(k, READ_EARLY)}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(theirs.fileno()), *modules],
                cwd=ROOT,
                env=plain | dict(early),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

        def end() -> None:
            control.close()
            process.wait(60)

        atexit.register(end)
        _origins[modules, early] = Origin(control)
    return _origins[modules, early]


def fork_children() -> None:
    """Fork what :class:`~quire.system.child_process.ChildProcess` starts in this process."""
    import quire.system.child_process

    names = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    forking: Any = SimpleNamespace(Popen=Preforked, **names)
    quire.system.child_process.subprocess = forking


def children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    """Return the children of a process, and theirs, less those that fork its children."""
    found = []
    for child in process.children(recursive=recursive):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if child.name() != NURSERY:
                found.append(child)
    return found
