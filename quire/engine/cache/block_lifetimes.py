"""Histograms of how long KV blocks live, lie idle and wait to be used again; for metrics alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.core.metrics import BLOCK_SECONDS_BUCKETS, HistogramCounts, Samples


class BlockLifetimes:
    """Follows the cached blocks of one pool (``--kv-cache-metrics``); a block observer.

    A block lives from when it is given out until its cached content is lost to the next one that
    takes it. It is used when it is given out and whenever another request finds it by its content.

    Args:
        clock: The engine's monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._lifetime = HistogramCounts(BLOCK_SECONDS_BUCKETS)
        self._idle = HistogramCounts(BLOCK_SECONDS_BUCKETS)
        self._gap = HistogramCounts(BLOCK_SECONDS_BUCKETS)

    def given_out(self, block_id: int, content: bytes | None) -> None:
        """A block is empty and belongs to a request."""
        self._born[block_id] = self._used[block_id] = self._clock()

    def cached(self, block_id: int, block_hash: bytes) -> None:
        """Do nothing: a block lives from the moment it is given out."""

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """A request shares blocks that hold its tokens."""
        now = self._clock()
        for block_id in block_ids:
            self._gap.observe(now - self._used[block_id])
            self._used[block_id] = now

    def evicted(self, block_id: int, block_hash: bytes) -> None:
        """The content of a block is lost."""
        now = self._clock()
        self._lifetime.observe(now - self._born[block_id])
        self._idle.observe(now - self._used[block_id])

    def samples(self) -> Samples:
        """Return the histograms by metric stem."""
        return {
            "kv_block_lifetime_seconds": self._lifetime.state(),
            "kv_block_idle_before_evict_seconds": self._idle.state(),
            "kv_block_reuse_gap_seconds": self._gap.state(),
        }
