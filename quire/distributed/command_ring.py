"""The driver's messages to workers: of any size, each to every worker, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class CommandChannel(Protocol):
    """One rank's end of the channel.

    Both methods raise :class:`~quire.core.errors.RankDeadError`, as groups do.
    """

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send one message, the buffers one after another; for the driver alone.

        It waits while workers have too many unread messages.
        """
        ...

    def receive(self) -> bytearray:
        """Wait for the next message and return it; for a worker alone."""
        ...


class CommandRing:
    """A channel in shared memory; created by a ``SharedMemory``.

    CPU: native/runtime/shared_stream.cpp.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        self._stream.write(buffers)

    def receive(self) -> bytearray:
        message: bytearray = self._stream.read()
        return message
