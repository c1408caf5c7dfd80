"""The live sequences of all requests, and how they change state; plans are made elsewhere."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from operator import attrgetter

from quire.core.step import SequenceResult
from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.cache.retained_blocks import RetainedBlocks
from quire.engine.engine_output import EngineOutput
from quire.engine.request import Request, RequestStatus
from quire.engine.scheduling.fair_queue import FairQueue
from quire.engine.scheduling.sequence_groups import SequenceGroups
from quire.engine.stats import EngineStats

_order = attrgetter("order")


class LiveSequences:
    """Waiting, held and running sequences; each changes state here and nowhere else.

    Args:
        kv: Blocks of all requests.
        most_of_group: Sequences of one request that run or are queued while parts are kept back.
        clock: The engine's monotonic clock, in seconds.
        finished: Call that is told of each sequence that ends, with the reason.

    Attributes:
        by_id: Live sequences by id.
        waiting: Sequences that may start.
        running: Running sequences, sorted by order.
        held: Sequences that are held, by id: their status before.
        kept: Blocks of ended sequences that others continue.
        stats: Counts of what became of sequences.
        ended_ids: Sequences that ended or were preempted, of which the runner does not know yet.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        most_of_group: int,
        clock: Callable[[], float],
        finished: Callable[[Request, str], None],
    ) -> None:
        self._kv = kv
        self.kept = RetainedBlocks(kv)
        self.stats = EngineStats()
        self.waiting = FairQueue(clock)
        self.running: list[Request] = []
        self.by_id: dict[str, Request] = {}
        self.held: dict[str, RequestStatus] = {}
        self.ended_ids: list[str] = []
        self._groups = SequenceGroups(most_of_group)
        self._finished = finished

    def add(self, request: Request, others: Sequence[Request] = ()) -> None:
        """Queue a request that can fit (the engine has checked), with its pending children.

        Args:
            request: The first of its sequences, or of a part of them.
            others: The first sequences of the other parts, which start after it.
        """
        group = [one for head in (request, *others) for one in (head, *head.pending_children)]
        for sequence in group:
            self.by_id[sequence.request_id] = sequence
        self._groups.add(group)
        self._groups.keep_back(others)
        self.stats.num_sequences_added += len(group)
        self.kept.added(request)
        self.waiting.push(request)

    def _queue_parts(self, request: Request) -> None:
        """Queue parts of a request that start now: a sequence of it draws, or has ended."""
        for head in self._groups.next_parts(request.group_id):
            self.kept.added(head)
            self.waiting.push(head)

    def hold(self, request: Request) -> None:
        """Keep a queued request from starting until :meth:`release`: something is on the way."""
        self.waiting.remove(request)
        self.held[request.request_id] = request.status
        request.status = RequestStatus.WAITING_FOR_KV

    def release(self, request: Request) -> None:
        """Queue a request that was held."""
        request.status = self.held.pop(request.request_id)
        self.waiting.push(request)

    def group(self, group_id: str) -> list[Request]:
        """Return the live sequences of a user's request; empty when unknown or finished."""
        return self._groups.live(group_id)

    def start(self, request: Request) -> None:
        """Add a request that has left the queue to the running ones."""
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=_order)

    def end(self, request: Request, reason: str) -> EngineOutput:
        """End a sequence in whatever state it is, between steps; its blocks are free at once."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request.status is RequestStatus.RUNNING:
            del self.running[bisect_left(self.running, request.order, key=_order)]
        else:
            self.held.pop(request.request_id, None)
        self.finish(request, reason)
        return EngineOutput.of(request, SequenceResult(), reason)

    def preempt(self, request: Request) -> None:
        """Free the blocks of a request that has left the running ones, and queue it again."""
        self._kv.free(request)
        self._requeue(request)

    def lose(self, request: Request) -> None:
        """Requeue a request whose step read blocks without content: it is computed anew."""
        self._kv.free(request, forget=True)
        self._requeue(request)

    def _requeue(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        self.stats.preempted(request)
        request.num_computed_tokens = 0
        self.ended_ids.append(request.request_id)
        self.waiting.push(request)

    def fork(self, request: Request) -> list[Request]:
        """Split the pending children off from a request; return them."""
        children, request.pending_children = request.pending_children, []
        for child in children:
            child.token_ids = list(request.token_ids)
            child.num_computed_tokens = request.num_computed_tokens
            self.stats.forked(request, child)
            child.status = RequestStatus.RUNNING
            self._kv.fork(request, child)
            insort(self.running, child, key=_order)
        self._queue_parts(request)
        return children

    def drop_ended(self) -> None:
        """Take sequences that have ended, or were queued again, out of the running ones."""
        self.running[:] = [r for r in self.running if r.status is RequestStatus.RUNNING]

    def finish(self, request: Request, reason: str) -> None:
        """The one end of every sequence; the caller takes it out of queue or running list."""
        assert request.finish_reason is None, (
            f"{request.request_id}: {request.finish_reason}, {reason}"
        )
        if request.status is RequestStatus.RUNNING:
            self.ended_ids.append(request.request_id)
        self.kept.ended(request, reason)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self.stats.finished[reason] += 1
        self._finished(request, reason)
        del self.by_id[request.request_id]
        self._groups.ended(request)
        self._queue_parts(request)
