"""Connections whose client does not read: seen by their unsent bytes, and cut after a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from quire.system.log import get_logger

log = get_logger(__name__)


class UnreadAnswers:
    """Cuts connections whose clients read nothing; it runs now and then, apart from the answers.

    A connection on which the server waits to write, or which it wants to close, has a buffer that
    can only shrink. One that does not shrink for the whole time is cut: the request ends as when
    its client leaves.

    Args:
        seconds: Seconds that a client may read nothing.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        #: By connection: bytes unsent, and since when.
        self._unsent: WeakKeyDictionary[Any, tuple[int, float]] = WeakKeyDictionary()

    def cut(self, connections: Iterable[Any]) -> int:
        """Cut the connections whose time is over; return how many."""
        now, count = self._clock(), 0
        for connection in connections:
            size = connection.transport.get_write_buffer_size()
            if not size or not connection.waits_to_write:
                self._unsent.pop(connection, None)
                continue
            last = self._unsent.get(connection)
            if last is None or size < last[0]:
                self._unsent[connection] = size, now
            elif now - last[1] >= self._seconds:
                log.info(
                    "[http] a client has read nothing for %g s (--write-timeout): cut off",
                    self._seconds,
                )
                connection.transport.abort()
                count += 1
        return count
