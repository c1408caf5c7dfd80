"""What the driver tells all workers: messages of any size, each to every one of them, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class CommandChannel(Protocol):
    """One rank's end. Both raise :class:`~quire.core.errors.RankDeadError`, as groups do."""

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send one message, the buffers one after another; the driver alone.

        Waits while workers have too many unread.
        """
        ...

    def receive(self) -> bytearray:
        """Return the next message, whenever it comes; a worker alone."""
        ...


class CommandRing:
    """A channel in shared memory; made by a ``SharedMemory``.

    CPU: native/runtime/shared_stream.cpp.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        self._stream.write(buffers)

    def receive(self) -> bytearray:
        message: bytearray = self._stream.read()
        return message
