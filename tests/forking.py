"""The process that ``tests/preforked.py`` forks from, and what a fork does to become a program."""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests import preforked
from tests.preforked import MOST_DESCRIPTORS, NURSERY, PID, SIZE, Origin

#: What ``quire serve``, an engine and a rank import on their way to a first answer.
PRELOADED = (
    "quire.cli.serve",
    "quire.cli.serve_models",
    "quire.kernels.cpu.backend",
    "quire.server.app",
    "quire.server.lifecycle",
    "quire.server.loading_app",
    "quire.llm.async_llm",
    "quire.llm.planning.dry_run",
    "quire.llm.process.engine_loop",
    "quire.llm.process.remote_engine_loop",
    "quire.runner.ranks.rank_process",
    "quire.runner.ranks.static_nodes",
    "quire.text.templates.template_sandbox",
    "quire.text.tokenizers.tokenizer_sandbox",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.wsproto_impl",
    # What libraries import when they are first used. Not the hub's: it reads variables.
    *("PIL.GifImagePlugin", "filelock", "httpcore2", "httpx2", "numpy.ma", "numpy.random"),
    *("tqdm.auto", "truststore", "yaml"),
)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_prctl = ctypes.CDLL(None).prctl


def serve(control: int, modules: Sequence[str]) -> None:
    """Fork as told on a socket until it is closed; in a fork, run what is asked for and return."""
    gc.disable()  # it would look at what is imported again and again
    for name in (*PRELOADED, *modules):
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads, of which a fork has one: OPENBLAS_NUM_THREADS=1?"
    gc.collect()
    gc.freeze()  # a fork's collector has nothing to look for in them
    gc.enable()
    _set_name(NURSERY)
    request = _Forks(socket.socket(fileno=control)).next_request()
    code: list[str] | None = None
    while request is not None:
        code = request["arguments"]
        _take(request)
        request = _nursery(request)
    if code is None:
        return
    try:
        _run(code)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise  # a text: the interpreter prints it
        _end(end.code or 0)
    _end(0)


def _end(code: int) -> NoReturn:
    """End as an interpreter does, but leave its modules: to take them apart copies each page."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120  # Python's
    os._exit(code & 0xFF)


#: What a program begins with. A suite that runs in the background has SIGINT ignored, and its
#: children inherit that.
_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class _Forks:
    """The loop of a process that forks children for another one."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        # A terminal's Ctrl-C and a supervisor's SIGTERM are for those who end this by its socket.
        for number in _HANDLERS:
            signal.signal(number, signal.SIG_IGN)

    def next_request(self) -> dict[str, Any] | None:
        """Return in each fork with what it shall be; in the origin at the end with None."""
        while (message := self._receive()) is not None:
            request, (answer, *streams) = message
            if self._fork():
                request["answer"] = _high(answer)
                self._leave(streams[:3], streams[3:], request["descriptors"])
                return request
            for descriptor in (answer, *streams):
                os.close(descriptor)
        return None

    def _receive(self) -> tuple[dict[str, Any], array.array[int]] | None:
        head, descriptors, _, _ = socket.recv_fds(self._control, SIZE.size, MOST_DESCRIPTORS)
        if not head:
            return None
        head += self._control.recv(SIZE.size - len(head), socket.MSG_WAITALL)
        data = self._control.recv(SIZE.unpack(head)[0], socket.MSG_WAITALL)
        return json.loads(data), array.array("i", descriptors)

    def _fork(self) -> bool:
        """Make a child of the process that asks, which adopts it from one that ends at once.

        Returns:
            Whether this is the child.
        """
        adopted, adopt = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork():
                os._exit(0)
            os.close(adopt)
            if not os.read(adopted, 1):
                os._exit(1)  # the process that forks was killed meanwhile
        else:
            os.waitpid(middle, 0)
            os.write(adopt, b".")
            os.close(adopt)
        os.close(adopted)
        return middle == 0

    def _leave(self, streams: Sequence[int], passed: Sequence[int], numbers: Sequence[int]) -> None:
        """Drop, in a fork, what the origin has, and take the streams and what is passed."""
        for number, handler in _HANDLERS.items():
            signal.signal(number, handler)
        self._control.close()
        for standard, descriptor in enumerate(streams):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        # By way of high ones, as a number that is wanted may be another's here.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 600) for descriptor in passed]
        for descriptor in passed:
            os.close(descriptor)
        for descriptor, number in zip(high, numbers, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _high(descriptor: int) -> int:
    """Move a descriptor out of the way: what the program opens has the numbers that it would."""
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(descriptor)
    return high


def _take(request: dict[str, Any]) -> None:
    """Take what a process has of its parent: the environment and the folder."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if request["session"]:
        os.setsid()
    os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    time.tzset()


def _set_name(module: str) -> None:
    """Name this process; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, module.rpartition(".")[2].encode()[-15:])


def _nursery(request: dict[str, Any]) -> dict[str, Any] | None:
    """Fork the process that forks the children of this one; return in each what it shall be.

    Who asked is told of this process once it and that one have their names.

    Returns:
        None in this process, which has what was requested.
    """
    control, theirs = socket.socketpair()
    answer = request["answer"]
    _set_name(NURSERY)
    if os.fork():
        theirs.close()
        preforked.set_origin(Origin(socket.socket(fileno=_high(control.detach()))))
        preforked.fork_children()
        option, code, *arguments = request["arguments"]
        # Of a child process: the module of its function.
        _set_name(arguments[0] if option == "-c" and arguments else code)
        os.write(answer, PID.pack(os.getpid()))
        os.close(answer)
        return None
    control.close()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for descriptor in (nothing, answer, *request["descriptors"]):
        os.close(descriptor)
    wanted = _Forks(theirs).next_request()
    if wanted is None:
        os._exit(0)
    return wanted


def _run(words: list[str]) -> None:
    """Run a module or code as a new interpreter does."""
    _renew(sys.stdin, 0, line_buffering=False)
    _renew(sys.stdout, 1, line_buffering=os.isatty(1))
    _renew(sys.stderr, 2, line_buffering=True)
    option, code, *arguments = words
    sys.argv = [option, *arguments]
    sys.orig_argv = [sys.executable, *words]
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    _take_python_path()
    if option == "-c":
        exec(compile(code, "<string>", "exec"), main)
        return
    sys.path[0] = os.getcwd()
    sys.modules.pop(code, None)
    # What `python -m` itself calls; `run_module` would put another `__main__` back at its end.
    runpy._run_module_as_main(code)  # type: ignore[attr-defined]


def _take_python_path() -> None:
    """Do what an interpreter does at its start with ``PYTHONPATH``."""
    folders = [name for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name]
    sys.path[1:1] = [name for name in folders if name not in sys.path]
    if any(Path(name, "sitecustomize.py").exists() for name in folders):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def _renew(stream: Any, descriptor: int, *, line_buffering: bool) -> None:
    """Make a standard stream again for another file; modules that have it at hand keep it."""
    encoding, errors, name = stream.encoding, stream.errors, stream.name
    raw = io.FileIO(descriptor, "w" if descriptor else "r", closefd=False)
    raw.name = name  # type: ignore[misc]
    buffer = io.BufferedWriter(raw) if descriptor else io.BufferedReader(raw)
    stream.__init__(
        buffer, encoding=encoding, errors=errors, newline="\n", line_buffering=line_buffering
    )
