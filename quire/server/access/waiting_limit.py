"""Bounds on the queue of waiting prompts, and when to retry; the engine decides which run."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from quire.server.http.http_errors import ApiError, shutting_down

#: The service rate is measured over this window, and over at least the second.
WINDOW_SECONDS = 30.0
MIN_WINDOW_SECONDS = 1.0
MAX_RETRY_SECONDS = 120
#: Which limit refuses a request.
REASONS = ("queued_requests", "queued_tokens", "shutdown")


class QueueEntry:
    """A prompt that waits, from its admission to its first token."""

    def __init__(self, admission: WaitingLimit, num_tokens: int, client_id: str) -> None:
        self._admission = admission
        self._num_tokens = num_tokens
        self._client_id = client_id
        self._waits = True

    def remove(self, *, served: bool) -> None:
        """Take the prompt out of the queue; a second call does nothing.

        Args:
            served: Whether the prompt has its first token, so that it counts for the service rate.
        """
        if self._waits:
            self._waits = False
            self._admission.remove(self._num_tokens, served, self._client_id)


class WaitingLimit:
    """Counts prompts that wait for their first token and refuses those beyond the limits.

    A client that fills the queue does not close it to the others: the clients with waiting
    prompts have equal shares of the limits.

    Args:
        max_reqs: Most prompts that wait.
        max_tokens: Most prompt tokens that wait, None for no limit; one prompt alone may have more.
        clock: A monotonic clock, in seconds.
        rejections: Counts of refused requests by reason; other limits may count there, too.

    Attributes:
        num_reqs, num_tokens: Prompts that wait now, and their tokens.
        draining: Whether every request is refused because the server is about to end.
        rejections: Requests refused, by reason.
    """

    def __init__(
        self,
        max_reqs: int,
        max_tokens: int | None,
        clock: Callable[[], float] = time.monotonic,
        rejections: Counter[str] | None = None,
    ) -> None:
        self._max_reqs = max_reqs
        self._max_tokens = max_tokens
        self._clock = clock
        self._served: deque[tuple[float, int]] = deque()  # (time, prompt tokens)
        self._reqs_of: Counter[str] = Counter()  # by client; those that wait, and no others
        self._tokens_of: Counter[str] = Counter()
        self._first_time: float | None = None
        self.num_reqs = 0
        self.num_tokens = 0
        self.draining = False
        self.rejections = Counter() if rejections is None else rejections
        self.rejections.update(dict.fromkeys(REASONS, 0))

    def admit(self, sizes: Sequence[int], client_id: str = "") -> list[QueueEntry]:
        """Take the prompts of a client's request, whose sizes are in tokens, all or none.

        Raises:
            ApiError: 429 the queue is full, 503 the server drains; both with ``Retry-After``.
        """
        if self.draining:
            self.rejections["shutdown"] += 1
            raise shutting_down()
        num_clients = len(self._reqs_of.keys() | {client_id})
        reqs_over = min(
            self.num_reqs + len(sizes) - self._max_reqs,
            self._reqs_of[client_id] + len(sizes) - self._max_reqs // num_clients,
        )
        tokens_over = 0
        if self._max_tokens is not None:
            tokens_over = min(
                self.num_tokens + sum(sizes) - self._max_tokens,
                self._tokens_of[client_id] + sum(sizes) - self._max_tokens // num_clients,
            )
        # An idle server takes everything: what is refused then would never be taken.
        if self.num_reqs and (reqs_over > 0 or tokens_over > 0):
            self.rejections["queued_requests" if reqs_over > 0 else "queued_tokens"] += 1
            seconds = self.retry_after(reqs_over, tokens_over)
            raise ApiError(
                429,
                f"The server is overloaded. Waiting prompts: {self.num_reqs}, with "
                f"{self.num_tokens} tokens in all. Try again in {seconds} s.",
                type="server_overloaded",
                headers={"Retry-After": str(seconds)},
            )
        if self._first_time is None:
            self._first_time = self._clock()
        self.num_reqs += len(sizes)
        self.num_tokens += sum(sizes)
        self._reqs_of[client_id] += len(sizes)
        self._tokens_of[client_id] += sum(sizes)
        return [QueueEntry(self, size, client_id) for size in sizes]

    def remove(self, num_tokens: int, served: bool, client_id: str) -> None:
        """Count a prompt out; see :meth:`QueueEntry.remove`."""
        self.num_reqs -= 1
        self.num_tokens -= num_tokens
        self._reqs_of[client_id] -= 1
        self._tokens_of[client_id] -= num_tokens
        if not self._reqs_of[client_id]:
            del self._reqs_of[client_id], self._tokens_of[client_id]
        if served:
            self._served.append((self._clock(), num_tokens))
            self._drop_old()

    def retry_after(self, num_reqs: int, num_tokens: int) -> int:
        """Return in how many seconds that many more prompts and tokens will have been served."""
        self._drop_old()
        if not self._served or self._first_time is None:
            return 1
        since = max(self._first_time, self._clock() - WINDOW_SECONDS)
        window = max(MIN_WINDOW_SECONDS, self._clock() - since)
        served_tokens = max(1, sum(size for _, size in self._served))
        seconds = window * max(num_reqs / len(self._served), num_tokens / served_tokens)
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(seconds)))

    def _drop_old(self) -> None:
        oldest = self._clock() - WINDOW_SECONDS
        while self._served and self._served[0][0] < oldest:
            self._served.popleft()
