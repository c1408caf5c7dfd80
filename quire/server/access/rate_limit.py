"""Limits on the requests and tokens of each API key in a minute."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from quire.server.access.authentication import ApiKey
from quire.server.http.http_errors import ApiError

SECONDS = 60.0


class TokenBucket:
    """A budget that fills at a steady rate up to a minute's worth; starts full.

    Args:
        per_minute: The amount that flows in per minute, and the most that the bucket holds.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._size = float(per_minute)
        self._clock = clock
        self._level = self._size
        self._time = clock()

    def wait(self, amount: float) -> float:
        """Return the seconds until ``amount`` is there, 0.0 when it is.

        More than the bucket holds is there when it is full: it can be owed, see :meth:`take`.
        """
        now = self._clock()
        rate = self._size / SECONDS
        self._level = min(self._size, self._level + rate * (now - self._time))
        self._time = now
        return max(0.0, (min(amount, self._size) - self._level) / rate)

    def take(self, amount: float) -> None:
        """Take ``amount``, there or not: what is owed must flow in first; below 0 it comes back."""
        self._level -= amount


class RateLimits:
    """The buckets of all keys that have limits.

    Args:
        clock: A monotonic clock, in seconds.
        rejections: Counts of refused requests by reason; added to.
    """

    def __init__(
        self, rejections: Counter[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rejections = rejections
        self._clock = clock
        self._requests: dict[bytes, TokenBucket] = {}
        self._tokens: dict[bytes, TokenBucket] = {}
        for reason in ("key_requests", "key_tokens"):
            rejections[reason] += 0

    def admit(self, key: ApiKey, num_tokens: int) -> None:
        """Count a request against its key.

        Args:
            key: Key of the request.
            num_tokens: Tokens of the prompts, and the most that the answers may have.

        Raises:
            ApiError: 429 with ``Retry-After``; nothing was counted.
        """
        wanted = []
        for buckets, per_minute, amount, unit in (
            (self._requests, key.requests_per_minute, 1, "requests"),
            (self._tokens, key.tokens_per_minute, num_tokens, "tokens"),
        ):
            if per_minute is None:
                continue
            if key.digest not in buckets:
                buckets[key.digest] = TokenBucket(per_minute, self._clock)
            bucket = buckets[key.digest]
            seconds = math.ceil(bucket.wait(amount))
            if seconds > 0:
                self._rejections[f"key_{unit}"] += 1
                counted = unit if per_minute > 1 else unit.removesuffix("s")
                raise ApiError(
                    429,
                    f"This API key may use {per_minute} {counted} a minute. "
                    f"Try again in {seconds} s.",
                    type="rate_limit_exceeded",
                    headers={"Retry-After": str(seconds)},
                )
            wanted.append((bucket, amount))
        for bucket, amount in wanted:
            bucket.take(amount)

    def reserve(
        self, key: ApiKey | None, num_prompt_tokens: int, num_output_tokens: int
    ) -> Reservation:
        """Count a request against its key before it is answered; without a key, nothing.

        Args:
            key: Key of the request.
            num_prompt_tokens: Tokens of its prompts.
            num_output_tokens: Most tokens that the answers may have, as far as the request says so.

        Raises:
            ApiError: 429 with ``Retry-After``; nothing was counted.
        """
        if key is None:
            return Reservation(None, 0)
        self.admit(key, num_prompt_tokens + num_output_tokens)
        return Reservation(self._tokens.get(key.digest), num_output_tokens)


class Reservation:
    """Tokens that were taken for answers before these are computed.

    Args:
        bucket: The bucket that they were taken from; None where there is no limit.
        num_tokens: Number of tokens that were taken.
    """

    def __init__(self, bucket: TokenBucket | None, num_tokens: int) -> None:
        self._bucket = bucket
        self._num_reserved = num_tokens
        self._num_used = 0

    def use(self, num_tokens: int) -> None:
        """Count tokens of an answer; the key may owe those that were not reserved."""
        self._num_used += num_tokens
        if self._num_used > self._num_reserved:
            self.settle()

    def settle(self, num_unused: int = 0) -> None:
        """Give back what was reserved and not used, and further tokens that nothing was done with.

        Those that are used later are owed.
        """
        if self._bucket is not None:
            self._bucket.take(self._num_used - self._num_reserved - num_unused)
        self._num_reserved = self._num_used
