"""``python -m`` and ``-c`` from an interpreter that has imported Quire, for processes to kill.

:class:`Preforked` stands where a test has ``subprocess.Popen([sys.executable, "-m", ...])``::

    process = Preforked([sys.executable, "-m", "quire.cli.main", "serve"], stderr=PIPE, text=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0

The first one starts a process with one thread that imports :data:`PRELOADED` (about a second), and
each is a fork of that: it has a pid, an exit code and an end of its own, and is as ``python -m``
leaves it (``__main__``, ``sys.argv``, working folder, environment, signals, standard streams), less
the second of imports. It ends as an interpreter does: the fork runs out of the main module.

What differs from a fresh interpreter, so that a test of it needs ``subprocess``:

- Its parent is the process that forks, which ends it when the tests have ended, and its command
  line (``/proc/PID/cmdline``) is that one's. Children that it starts are as always.
- Standard input is the null device unless it is told otherwise.
- ``sys.modules`` has more in it, and a module's top level has run before the environment was set.
  Variables that are read there (:data:`READ_EARLY`) get a process of their own to fork from.
- Its CPU time is not that of this process's children; :attr:`Preforked.cpu_seconds` has it.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
#: What ``quire serve`` and a rank import on their way to a first answer.
PRELOADED = (
    "quire.cli.serve",
    "quire.cli.serve_models",
    "quire.server.app",
    "quire.server.loading_app",
    "quire.llm.async_llm",
    "quire.llm.dry_run",
    "quire.runner.parallel.rank_process",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.wsproto_impl",
)
#: Beginnings of the variables that are read when an interpreter starts or a module is imported.
READ_EARLY = (
    *("COV", "GLIBC", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_"),
    *("PROMETHEUS", "PYTHON", "QUIRE_CPU_ISA", "QUIRE_LOG_LEVEL"),
)
#: Of a request: whom to tell of the end, the standard streams, and what is passed.
MOST_DESCRIPTORS = 12
_SIZE, _PID, _END = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<id")
_CODE = "import sys; from tests.preforked import serve; serve(int(sys.argv[1]), sys.argv[2:])"


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
        preloaded: Modules that its origin has imported.

    Attributes:
        pid: Process id.
        returncode: Exit code, below 0 of a signal; None as long as none was asked for and had.
        cpu_seconds: User's and system's time of it and of the children it waited for, at its end.
        total_cpu_seconds: Of all that have ended.
    """

    total_cpu_seconds = 0.0

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
        preloaded: Sequence[str] = PRELOADED,
    ) -> None:
        assert args[0] == sys.executable and args[1] in ("-m", "-c"), args
        self.args = args
        self.returncode: int | None = None
        self.cpu_seconds = 0.0
        environment = dict(os.environ if env is None else env)
        request = {
            "arguments": list(args[1:]),
            "cwd": os.fspath(cwd or os.getcwd()),
            "environment": environment,
            "session": start_new_session,
            "descriptors": list(pass_fds),
            "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        }
        self._status, theirs = socket.socketpair()
        merged = stderr == subprocess.STDOUT
        self.stdin, their_input = _stream(stdin, 0, text)
        self.stdout, output = _stream(stdout, 1, text)
        self.stderr, errors = (None, output) if merged else _stream(stderr, 2, text)
        streams = [their_input, output, errors]
        try:
            descriptors = [theirs.fileno(), *streams, *pass_fds]
            fork_server(environment, preloaded).send(request, descriptors)
        finally:
            theirs.close()
            for descriptor in set(streams) - {0, 1, 2}:
                os.close(descriptor)
        self.pid: int = _PID.unpack(self._receive(_PID.size))[0]

    def _receive(self, size: int) -> bytes:
        data = self._status.recv(size, socket.MSG_WAITALL)
        assert len(data) == size, "the process that forks has ended"
        return data

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode, self.cpu_seconds = _END.unpack(self._receive(_END.size))
            Preforked.total_cpu_seconds += self.cpu_seconds
            self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not in ``timeout`` seconds.
        """
        if self.returncode is None:
            select.select([self._status], [], [], timeout)
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


class _ForkServer:
    """The process that forks, seen from the tests."""

    def __init__(self, environment: Mapping[str, str], preloaded: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(theirs.fileno()), *preloaded],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        """Process id, of the parent of what it forks."""
        return self._process.pid

    def send(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        data = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._control, [_SIZE.pack(len(data))], list(descriptors))
            self._control.sendall(data)

    def end(self) -> None:
        self._control.close()
        self._process.wait(60)


_servers: dict[tuple[Any, ...], _ForkServer] = {}


def fork_server(
    environment: Mapping[str, str], preloaded: Sequence[str] = PRELOADED
) -> _ForkServer:
    """Return the process that forks for an environment, started when first asked for."""
    rows = sorted(row for row in environment.items() if row[0].startswith(READ_EARLY))
    key = (*preloaded, *rows)
    if key not in _servers:
        early = {name: value for name, value in environment.items() if name.startswith(READ_EARLY)}
        plain = {k: v for k, v in os.environ.items() if not k.startswith(READ_EARLY)}
        _servers[key] = _ForkServer({**plain, **early}, preloaded)
    return _servers[key]


def serve(control: int, preloaded: Sequence[str]) -> None:
    """Fork as told on a socket until it is closed; in a fork, run what is asked for and return."""
    for name in preloaded:
        importlib.import_module(name)
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
    assert threads == 1, f"{threads} threads, of which a fork has one: OPENBLAS_NUM_THREADS=1?"
    gc.collect()
    gc.freeze()  # a fork's collector has nothing to look for in them
    request = _Forks(socket.socket(fileno=control)).next_request()
    if request is not None:
        _become(request)


class _Forks:
    """The loop of the process that forks."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._running: dict[int, socket.socket] = {}
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._before = {
            signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None),
            # A terminal's Ctrl-C is for the tests, which end this by closing the socket.
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        }

    def next_request(self) -> dict[str, Any] | None:
        """Return in each fork with what it shall be; in the origin at the end with None."""
        while True:
            ready, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            if self._control not in ready:
                continue
            if (message := self._receive()) is None:
                break
            request, (status, *streams) = message
            pid = os.fork()
            if pid == 0:
                os.close(status)
                self._leave(streams[:3], streams[3:], request["descriptors"])
                return request
            for descriptor in streams:
                os.close(descriptor)
            self._running[pid] = socket.socket(fileno=status)
            self._running[pid].sendall(_PID.pack(pid))
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        return None

    def _receive(self) -> tuple[dict[str, Any], array.array[int]] | None:
        head, descriptors, _, _ = socket.recv_fds(self._control, _SIZE.size, MOST_DESCRIPTORS)
        if not head:
            return None
        head += self._control.recv(_SIZE.size - len(head), socket.MSG_WAITALL)
        data = self._control.recv(_SIZE.unpack(head)[0], socket.MSG_WAITALL)
        return json.loads(data), array.array("i", descriptors)

    def _reap(self) -> None:
        while self._running:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            told = self._running.pop(pid)
            with told, suppress(OSError):  # the test does not ask any more
                told.sendall(_END.pack(code, usage.ru_utime + usage.ru_stime))

    def _leave(self, streams: Sequence[int], passed: Sequence[int], numbers: Sequence[int]) -> None:
        """Drop, in a fork, what the origin has, and take the streams and what is passed."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for stream in (self._control, self._woken, self._wake, *self._running.values()):
            stream.close()
        self._running.clear()
        for standard, descriptor in enumerate(streams):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        # By way of high ones, as a number that is wanted may be another's here.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 500) for descriptor in passed]
        for descriptor in passed:
            os.close(descriptor)
        for descriptor, number in zip(high, numbers, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _become(request: dict[str, Any]) -> None:
    """Run a module or code as a new interpreter does, in a fork."""
    if request["session"]:
        os.setsid()
    if request["cores"]:
        os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    time.tzset()
    _renew(sys.stdin, 0, line_buffering=False)
    _renew(sys.stdout, 1, line_buffering=os.isatty(1))
    _renew(sys.stderr, 2, line_buffering=True)
    option, code, *arguments = request["arguments"]
    sys.argv = [option, *arguments]
    sys.orig_argv = [sys.executable, *request["arguments"]]
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    if option == "-c":
        exec(compile(code, "<string>", "exec"), main)
        return
    sys.path[0] = os.getcwd()
    sys.modules.pop(code, None)
    # What `python -m` itself calls; `run_module` would put another `__main__` back at its end.
    runpy._run_module_as_main(code)  # type: ignore[attr-defined]


def _renew(stream: Any, descriptor: int, *, line_buffering: bool) -> None:
    """Make a standard stream again for another file; modules that have it at hand keep it."""
    encoding, errors, name = stream.encoding, stream.errors, stream.name
    raw = io.FileIO(descriptor, "w" if descriptor else "r", closefd=False)
    raw.name = name  # type: ignore[misc]
    buffer = io.BufferedWriter(raw) if descriptor else io.BufferedReader(raw)
    stream.__init__(
        buffer, encoding=encoding, errors=errors, newline="\n", line_buffering=line_buffering
    )
