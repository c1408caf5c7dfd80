"""The gate for pictures: a request waits until the pictures of its next step are encoded.

Pictures are encoded between steps, a slice at a time, for as long as a step of the decoding
requests takes. Requests without pictures, or with pictures whose blocks are in the cache, pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.engine_request import Picture
from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.gates.gates import Queue
from quire.engine.request import Request, RequestStatus


class Pictures(Protocol):
    """Pictures' rows; execution makes and has them."""

    def is_ready(self, picture: Picture) -> bool:
        """Return whether a step may compute the rows of a picture at once."""
        ...

    def want(self, requests: Sequence[Sequence[Picture]]) -> None:
        """Name all pictures that are needed now, by requests, the most urgent first.

        Rows of the first request's pictures are kept until they are named no more, and of as many
        others as there is memory for; the rest may go.
        """
        ...

    def encode(self, seconds: float) -> None:
        """Make rows of what is wanted: one slice at least, others while they fit in the time."""
        ...


class PictureGate:
    """Holds requests until their pictures are encoded.

    Args:
        pictures: The executor's pictures.
        most_tokens: Number of tokens that a request may have in a step, at most.
    """

    def __init__(self, pictures: Pictures, most_tokens: int) -> None:
        self._pictures = pictures
        self._most_tokens = most_tokens
        self._open: list[Request] = []  # with pictures that are not computed
        self._held: set[Request] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether requests are held."""
        return bool(self._held)

    def holds(self, request: Request, queue: Queue) -> bool:
        """Return whether a queued request cannot start yet."""
        if not request.source.pictures:
            return False
        if request not in self._open:
            self._open.append(request)
        if self._is_ready(request, queue.kv):
            return False
        self._held.add(request)
        return True

    def step_begins(self, queue: Queue, seconds: float) -> frozenset[str]:
        """Encode for a while; release the requests that may start now.

        Args:
            queue: The queue of the requests.
            seconds: Seconds that other requests may wait.

        Returns:
            Running requests that must sit this step out.
        """
        if not self._open:
            return frozenset()
        self._open = [request for request in self._open if _has_more(request)]
        self._held.intersection_update(self._open)
        self._open.sort(key=lambda r: (r.status is not RequestStatus.RUNNING, r.order))
        self._pictures.want([self._next_pictures(request, queue.kv) for request in self._open])
        self._pictures.encode(seconds)
        unready = [request for request in self._open if not self._is_ready(request, queue.kv)]
        for request in self._held.difference(unready):
            self._held.remove(request)
            queue.release(request)
        running = RequestStatus.RUNNING
        return frozenset(r.request_id for r in unready if r.status is running)

    def _is_ready(self, request: Request, kv: KVCacheManager) -> bool:
        return all(map(self._pictures.is_ready, self._next_pictures(request, kv)))

    def _next_pictures(self, request: Request, kv: KVCacheManager) -> list[Picture]:
        """Return the pictures of which a request's next step may compute rows."""
        hits = kv.get_computed_blocks(request)
        start = request.num_computed_tokens + len(hits) * kv.block_size
        stop = start + self._most_tokens
        return [
            picture
            for picture in request.source.pictures
            if picture.start < stop and picture.start + picture.num_tokens > start
        ]


def _has_more(request: Request) -> bool:
    """Return whether rows of a request's pictures are not computed yet."""
    last = request.source.pictures[-1]
    is_computed = request.num_computed_tokens >= last.start + last.num_tokens
    return request.status is not RequestStatus.FINISHED and not is_computed
