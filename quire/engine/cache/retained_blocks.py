"""Blocks of requests that do not run; they are given up when others need them.

A beam search computes one token of each beam, chooses, and goes on from what the chosen ones share:
its requests keep their blocks, and those of the next step begin with them by reference. A request
that writes into a shared block copies it first. A request whose blocks are loaded has them before
it starts. Nothing depends on it: what was given up is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.request import Request


class RetainedBlocks:
    """The block tables of ended requests, and of those that wait and have blocks already.

    Args:
        kv: All block tables.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._ended: dict[str, Request] = {}
        self._waiting: dict[str, Request] = {}

    def __contains__(self, request_id: str) -> bool:
        """Whether blocks of an ended request are kept under this id."""
        return request_id in self._ended

    def added(self, request: Request) -> None:
        """Take in a new request: it begins with the blocks of the one that it continues."""
        for ended_id in request.source.continuation.releases:
            self.release(ended_id)
        parent = self._ended.get(request.source.continuation.continues or "")
        if parent is None or request.needs_whole_prompt or not _continues(request, parent):
            return
        num_slots = len(self._kv.block_ids(parent)) * self._kv.block_size
        if num_slots - parent.num_computed_tokens >= self._kv.block_size:
            return  # some blocks are for tokens that were proposed
        self._kv.fork(parent, request)
        request.num_computed_tokens = parent.num_computed_tokens
        self.waits(request)

    def waits(self, request: Request) -> None:
        """Take note that a request has blocks before it starts."""
        self._waiting[request.request_id] = request

    def ended(self, request: Request, reason: str) -> None:
        """Free the blocks of a request that ends, or keep them until :meth:`release`."""
        self.started(request)
        wanted = request.source.continuation.keeps_blocks and reason in ("stop", "length")
        if wanted and self._kv.layout.shares_blocks and self._kv.num_blocks(request):
            self._ended[request.request_id] = request
        else:
            self._kv.free(request)

    def release(self, request_id: str) -> None:
        """Free what is kept of an ended request; other ids are no error."""
        request = self._ended.pop(request_id, None)
        if request is not None:
            self._kv.free(request)

    def started(self, request: Request) -> None:
        """Take note that a request runs: its blocks are no longer given up here."""
        self._waiting.pop(request.request_id, None)

    def give_up(self) -> bool:
        """Free the blocks of one request; False when none are left to free."""
        if self._ended:
            self.release(next(iter(self._ended)))
            return True
        if self._waiting:
            _, request = self._waiting.popitem()
            self._give_back(request)
            return True
        return False

    def lost(self, block_ids: Sequence[int]) -> None:
        """Restart waiting requests that have blocks without content."""
        for request in list(self._waiting.values()):
            if not set(block_ids).isdisjoint(self._kv.block_ids(request)):
                del self._waiting[request.request_id]
                self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self._kv.free(request)
        request.num_computed_tokens = request.num_loaded_tokens = 0


def _continues(request: Request, parent: Request) -> bool:
    """Return whether a request begins with all that was computed of another one."""
    size = parent.num_computed_tokens
    return (
        0 < size < request.num_tokens
        and request.source.extra_keys == parent.source.extra_keys
        and request.source.ranges == parent.source.ranges
        and request.token_ids[:size] == parent.token_ids[:size]
    )
