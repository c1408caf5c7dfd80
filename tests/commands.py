"""``quire`` commands run in this process, which has imported what they need.

:func:`run_quire` has the face of ``subprocess.run(..., capture_output=True, text=True)``. The
command gets standard streams, arguments, environment, logging and warnings of its own, as if it had
been started; then all is as before, and a thread or a process that it leaves fails the test.

A command runs in a process of its own (:mod:`tests.preforked`) when its first word is one of
:data:`FORKED`, or when a variable has changed that a module reads when it is imported. What is
about the process itself (signals, a terminal, a pipe that breaks, what is imported) starts
``python -m``.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

import quire
from quire.text.templates.template_processes import end_processes
from tests.preforked import READ_EARLY, Preforked, begins_with, children

COMMAND = [sys.executable, "-m", "quire.cli.main"]
#: As on a terminal of 100 columns without colours; one thread, as tests run one for each core.
SETTINGS = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100"}
#: They start processes that live on, or change this one for as long as it serves.
FORKED = {"run", "serve"}
#: Read by the hub's library when it is imported.
_EARLY = ("HF_", "HUGGINGFACE", *READ_EARLY)
_EARLY_VALUES = {name: value for name, value in os.environ.items() if begins_with(name, _EARLY)}
_PIPE_BYTES = 60_000

Done = subprocess.CompletedProcess


def environment(**settings: str) -> dict[str, str]:
    """Return the environment of a command, with further variables."""
    return {**os.environ, **SETTINGS, **settings}


def bare_environment(**settings: str) -> dict[str, str]:
    """Return the same without what a person has set: a home, a hub, a package index."""
    kept = ("PATH", "SYSTEMROOT", *READ_EARLY)
    own = {name: value for name, value in os.environ.items() if begins_with(name, kept)}
    return {**own, **SETTINGS, **settings}


def run_quire(
    *args: str, stdin: str = "", cwd: Path | None = None, timeout: float = 60, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run ``quire`` to its end.

    Args:
        args: Those after ``quire``.
        stdin: What it reads.
        cwd: Folder that it runs in.
        timeout: Of a process of its own, in seconds.
        **settings: Variables added to the environment.
    """
    variables = environment(**settings)
    if args[:1] and args[0] in FORKED or changed_early(variables):
        return fork_quire(*args, stdin=stdin, cwd=cwd, timeout=timeout, **settings)
    with _Streams(stdin) as streams, _process_state(args, variables, cwd), _nothing_left():
        code = _main()
    return Done([*COMMAND, *args], code, *streams.texts)


def changed_early(variables: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the variables of a command that modules here have read otherwise: then and now."""
    early = {name: value for name, value in variables.items() if begins_with(name, _EARLY)}
    names = (early.keys() | _EARLY_VALUES.keys()) - SETTINGS.keys()
    rows = {name: (_EARLY_VALUES.get(name), early.get(name)) for name in names}
    return {name: row for name, row in rows.items() if row[0] != row[1]}


def fork_quire(
    *args: str, stdin: str = "", cwd: Path | None = None, timeout: float = 60, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Do what :func:`run_quire` does, in a process of its own."""
    command = [*COMMAND, *args]
    return fork(command, stdin=stdin, cwd=cwd, timeout=timeout, env=environment(**settings))


def fork(
    command: list[str],
    *,
    env: Mapping[str, str],
    stdin: str = "",
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run what :class:`Preforked` takes to its end, as ``subprocess.run`` does."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Preforked(command, env=env, cwd=cwd, text=True, **streams)
    try:
        output, errors = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Done(command, process.returncode, output, errors)


def _main() -> int:
    """Run the command's entry point; return what the interpreter would end with."""
    from quire.cli.main import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


class _Streams:
    """Descriptors 0, 1 and 2 and their objects, replaced; what was written in ``texts``."""

    def __init__(self, stdin: str) -> None:
        self._input = stdin.encode("utf-8", "surrogateescape")
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self.texts: list[str] = []

    def __enter__(self) -> _Streams:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._objects = sys.stdin, sys.stdout, sys.stderr
        self._saved = [os.dup(number) for number in range(3)]
        self._replace([self._reader(), *(os.dup(file.fileno()) for file in self._files)])
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
        sys.stdout = self._writer(1, "strict", line_buffering=False)
        sys.stderr = self._writer(2, "backslashreplace", line_buffering=True)
        return self

    def __exit__(self, *exception: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        self._replace(self._saved)
        sys.stdin, sys.stdout, sys.stderr = self._objects
        for file in self._files:
            with file:
                file.seek(0)
                text = file.read().decode()
                self.texts.append(text.replace("\r\n", "\n").replace("\r", "\n"))

    @staticmethod
    def _replace(descriptors: list[int]) -> None:
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
            os.close(descriptor)

    def _reader(self) -> int:
        if len(self._input) > _PIPE_BYTES:
            with tempfile.TemporaryFile() as file:
                file.write(self._input)
                file.seek(0)
                return os.dup(file.fileno())
        read, write = os.pipe()
        with open(write, "wb") as pipe:
            pipe.write(self._input)
        return read

    @staticmethod
    def _writer(descriptor: int, errors: str, *, line_buffering: bool) -> io.TextIOWrapper:
        buffer = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
        return io.TextIOWrapper(
            buffer, "utf-8", errors, newline="\n", line_buffering=line_buffering
        )


@contextlib.contextmanager
def _process_state(
    args: tuple[str, ...], variables: Mapping[str, str], cwd: Path | None
) -> Iterator[None]:
    """Give the command what a new process has, and put back what this one had."""
    before = sys.argv, dict(os.environ), Path.cwd(), sys.getswitchinterval()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.argv = [str(Path(quire.__file__).parent / "cli" / "main.py"), *args]
    os.environ.clear()
    os.environ.update(variables)
    if cwd is not None:
        os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with _loggers(), _native_threads(), _torch_threads(), _default_warnings():
            yield
    finally:
        sys.argv, old, folder, interval = before
        os.environ.clear()
        os.environ.update(old)
        os.chdir(folder)
        sys.setswitchinterval(interval)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _loggers() -> Iterator[None]:
    """Log to the command's stderr as in a new process; nothing of pytest's listens."""
    root, ours = logging.getLogger(), logging.getLogger("quire")
    named = [x for x in logging.Logger.manager.loggerDict.values() if isinstance(x, logging.Logger)]
    saved = [(x, x.level, x.handlers[:], x.propagate, x.disabled) for x in (root, *named)]
    root.handlers[:], ours.handlers[:], ours.propagate = [], [], True
    root.setLevel(logging.WARNING)
    ours.setLevel(logging.NOTSET)
    try:
        from quire.system.log import get_logger

        get_logger("quire")
        yield
    finally:
        for logger, level, handlers, logger.propagate, logger.disabled in saved:
            logger.handlers[:] = handlers
            if logger.level != level:
                logger.setLevel(level)


@contextlib.contextmanager
def _native_threads() -> Iterator[None]:
    try:
        from quire import _native as native
    except ImportError:
        yield
        return
    before = native.num_threads()
    yield
    native.set_num_threads(before)


@contextlib.contextmanager
def _torch_threads() -> Iterator[None]:
    """One thread, as ``OMP_NUM_THREADS`` gives a new process."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def _default_warnings() -> Iterator[None]:
    """Filter warnings as an interpreter without options does, and write them to stderr."""
    ignored = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for kind in ignored:
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = lambda message, kind, file, line, *_: print(
            warnings.formatwarning(message, kind, file, line), end="", file=sys.stderr
        )
        # Files in cycles are closed at an interpreter's end; here before the filters are back. All
        # that the command makes stays young, and what is older is not looked at: to freeze it and
        # to thaw it would thaw what the suite has frozen for good.
        gc.collect(0)
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            gc.collect(0)
            if enabled:
                gc.enable()


@contextlib.contextmanager
def _nothing_left(seconds: float = 60.0) -> Iterator[None]:
    """Fail where the command leaves a thread or a child process."""
    threads_before, this = set(threading.enumerate()), psutil.Process()
    children_before = {child.pid for child in children(this)}
    yield
    end_processes()  # as the end of a command's own process does
    end = time.monotonic() + seconds
    while True:
        threads = [thread for thread in threading.enumerate() if thread not in threads_before]
        left = [child for child in children(this) if child.pid not in children_before]
        if not threads and not left:
            return
        assert time.monotonic() < end, f"the command has left {threads} and {left}"
        time.sleep(0.01)
