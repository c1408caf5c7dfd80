"""Bytes of bodies that have arrived in part: a bound for all connections together.

Each body may be large, and a client that keeps the last byte back has the server hold the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quire.server.http.http_errors import ApiError

#: Of all bodies that have not ended, and of those of one key.
MAX_BYTES, MAX_KEY_BYTES = 256 * 2**20, 128 * 2**20
#: A body counts from here on: as much as a connection holds anyway.
FREE_BYTES = 64 * 2**10


class UnreadBodies:
    """The bodies of a server."""

    def __init__(self) -> None:
        self._by_key: Counter[Any] = Counter()

    @contextmanager
    def reading(self, key: Any) -> Iterator[UnreadBody]:
        """Yield a body of a key, counted until the block ends."""
        body = UnreadBody(self._by_key, key)
        try:
            yield body
        finally:
            self._by_key[key] -= body.num_counted
            if not self._by_key[key]:
                del self._by_key[key]


#: Of this process: requests and messages of WebSockets.
UNREAD = UnreadBodies()


class UnreadBody:
    """One body; see :meth:`UnreadBodies.reading`.

    Args:
        by_key: Bytes of all bodies of a key.
        key: The API key of the request.

    Attributes:
        num_bytes: Bytes that have arrived.
    """

    def __init__(self, by_key: Counter[Any], key: Any) -> None:
        self._by_key, self._key = by_key, key
        self.num_bytes = 0

    @property
    def num_counted(self) -> int:
        """Bytes of it that count."""
        return max(0, self.num_bytes - FREE_BYTES)

    def add(self, count: int) -> None:
        """Count bytes that have arrived.

        Raises:
            ApiError: 503, all bodies together have too many.
        """
        more = max(0, self.num_bytes + count - FREE_BYTES) - self.num_counted
        own, total = self._by_key[self._key] + more, self._by_key.total() + more
        if more and (own > MAX_KEY_BYTES or total > MAX_BYTES):
            raise ApiError(
                503,
                "The server waits for the rest of too many large bodies. Try again.",
                headers={"Retry-After": "1"},
            )
        self.num_bytes += count
        self._by_key[self._key] += more
