"""Compiles the grammars of arriving requests in a thread, so that the engine's steps do not wait.

It knows no engine: what is compiled is picked up by the loop, which is woken.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from quire.core.errors import RequestError
from quire.core.structured_outputs import GrammarSource, StructuredOutputs
from quire.system.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

#: More than a grammar had when it was checked, whatever the system's default is.
STACK_BYTES = 16 * 2**20


class Compiler(GrammarSource, Protocol):
    """See :class:`quire.text.grammars.grammar.GrammarCompiler`."""

    def knows(self, constraint: StructuredOutputs) -> bool:
        """Return whether a constraint is compiled already."""
        ...

    def compile(self, constraint: StructuredOutputs) -> None:
        """Check and compile a constraint.

        Raises:
            QuireError: The constraint cannot be compiled.
        """
        ...


class GrammarThread(Generic[T]):
    """Requests whose grammars are being compiled, in order of arrival.

    Args:
        compiler: The compiler, used in the thread alone; the server has seen that this ends.

    Attributes:
        wake: A socket that is readable when :meth:`take` has something.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._queue: SimpleQueue[tuple[str, StructuredOutputs] | None] = SimpleQueue()
        self._waiting: dict[str, T] = {}
        self._done: deque[tuple[str, RequestError | None]] = deque()
        self._waker, self.wake = socket.socketpair()
        self._waker.setblocking(False)
        self.wake.setblocking(False)
        self._thread: threading.Thread | None = None

    def submit(self, request_id: str, constraint: StructuredOutputs, request: T) -> None:
        """Compile ``constraint``; :meth:`take` returns ``request`` afterwards."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quire-grammars", daemon=True)
            default = threading.stack_size(STACK_BYTES)
            try:
                self._thread.start()
            finally:
                threading.stack_size(default)
        self._waiting[request_id] = request
        self._queue.put((request_id, constraint))

    def knows(self, constraint: StructuredOutputs) -> bool:
        """Return whether a constraint needs no compiling: its requests need not wait for others."""
        return self._compiler.knows(constraint)

    def withdraw(self, request_id: str) -> T | None:
        """Return a request that :meth:`take` has not returned and will not, or None."""
        return self._waiting.pop(request_id, None)

    def take(self) -> list[tuple[T, RequestError | None]]:
        """Return the requests that are done, with the error of those whose grammar has one."""
        with suppress(BlockingIOError):
            self.wake.recv(4096)
        found = []
        while self._done:
            request_id, error = self._done.popleft()
            request = self._waiting.pop(request_id, None)
            if request is not None:
                found.append((request, error))
        return found

    def close(self) -> None:
        """End the thread, after what it has begun; what was submitted is dropped."""
        self._waiting.clear()
        self._queue.put(None)
        self._waker.close()
        self.wake.close()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            request_id, constraint = task
            error: RequestError | None = None
            if request_id in self._waiting:
                try:
                    self._compiler.compile(constraint)
                except RequestError as refusal:
                    error = refusal
                except Exception as failure:  # this request's alone
                    log.exception("[structured_outputs] compiling failed")
                    reason = type(failure).__name__  # its text may name files
                    text = f"[structured_outputs] compiling failed ({reason}); see the log."
                    error = RequestError(text, "structured_outputs")
            self._done.append((request_id, error))
            with suppress(OSError):  # full: the loop is about to wake anyhow; or closed
                self._waker.send(b"x")
