"""The process of an engine, and the things that its supervisor asks of it."""

from __future__ import annotations

from collections.abc import Callable
from socket import socket
from typing import Protocol

from quire.core.errors import EngineDeadError
from quire.llm.process.child import start_engine_process
from quire.system.child_process import ChildProcess


class EngineProcess(Protocol):
    """A process that computes, wherever it is; it lives as long as its socket."""

    @property
    def socket(self) -> socket:
        """The socket to the process."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id on this machine; None on another one."""
        ...

    def stacks(self) -> str:
        """Return its Python stacks; empty if they cannot be read."""
        ...

    def ending(self, *, at_once: bool) -> str:
        """Close the socket, end the process, and return how it has ended.

        Args:
            at_once: Whether it gets no time to end by itself.
        """
        ...


class EngineLauncher(Protocol):
    """Gives an engine its processes, one after the other."""

    def launch(self, is_wanted: Callable[[], bool]) -> EngineProcess | None:
        """Return the next process, as soon as there is one; None when none is wanted any more.

        Args:
            is_wanted: A function that is asked again and again.

        Raises:
            QuireError: No process can be started.
        """
        ...

    def close(self) -> None:
        """Take note that no more processes are wanted."""
        ...


class ChildLauncher:
    """Starts processes as children of this one.

    Args:
        first: The first process, if it is there already.
    """

    def __init__(self, first: ChildProcess | None = None) -> None:
        self._first = first

    def launch(self, is_wanted: Callable[[], bool]) -> EngineProcess:
        """Start a process, whether it is wanted or not: see :class:`EngineLauncher`."""
        child, self._first = self._first, None
        try:
            return child or start_engine_process()
        except OSError as failure:
            raise EngineDeadError(
                f"[engine] its process could not be started: {failure}."
            ) from failure

    def close(self) -> None:
        """Do nothing: see :class:`EngineLauncher`."""
