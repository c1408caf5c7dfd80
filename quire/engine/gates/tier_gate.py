"""The gate for tiers: it chooses the blocks to load, and requests wait until theirs have arrived.

A request that could start is looked up first: blocks that follow those of the cache and are in a
tier are loaded where that is cheaper than computing them. Those in memory come with the next step;
others are read meanwhile, and the request waits aside. While others run, few blocks are loaded in a
step. A request that was preempted finds its blocks in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.external_blocks import ExternalBlocks
from quire.core.metrics import Samples
from quire.engine.cache.block_moves import BlockMoves
from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.cache.tier_cost import num_worth_loading
from quire.engine.gates.gates import Queue
from quire.engine.request import Request, RequestStatus

#: Seconds that loading may add to a step that other requests wait for.
LOAD_SECONDS = 0.005
#: Seconds that a step waits for blocks when there is nothing else to do.
TIER_SECONDS = 0.002
#: A request waits this many times as long as its blocks should take, or as computing them would.
PATIENCE = 3.0
#: The least time that it waits, in seconds.
LEAST_PATIENCE = 0.05


class Tiers(Protocol):
    """Blocks outside of the cache, by the hash of their content; execution has them.

    Attributes:
        outlive: Whether some outlive the engine: blocks are saved as soon as they are full.
    """

    outlive: bool

    @property
    def move_seconds(self) -> float:
        """Seconds to copy a block from memory into the cache."""
        ...

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """Refuse blocks that the cache holds when other engines send them here."""
        ...

    def find(self, block_hashes: Sequence[bytes]) -> ExternalBlocks | None:
        """Look up a chain; None when it takes a while: ask again with the same one."""
        ...

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Take note that blocks are used, which the cache has."""
        ...

    def fetch(self, block_hashes: Sequence[bytes]) -> None:
        """Begin to read blocks into memory, in this order, those that are not there."""
        ...

    def num_ready(self, block_hashes: Sequence[bytes]) -> int | None:
        """Return how many leading ones are in memory; None when the first will not come."""
        ...

    def claim(self, block_hashes: Sequence[bytes]) -> None:
        """Keep blocks in memory, which they are in, for the next step to load."""
        ...

    def leave(self, block_hashes: Sequence[bytes]) -> None:
        """Take note that a request that had these blocks fetched waits for them no more."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until a block has arrived, at most that long."""
        ...

    def reset(self) -> None:
        """Forget all blocks."""
        ...

    def samples(self) -> Samples:
        """Return the numbers of moved and held blocks and bytes, by metric stem."""
        ...

    def describe(self) -> str:
        """Return a description of the blocks that are held, as text."""
        ...


@dataclass(slots=True)
class Visit:
    """A request that is looked up, or has been.

    Attributes:
        request: The request, which waits.
        num_preemptions: Number of its preemptions so far; after another one it is looked up again.
        chain: Hashes of the blocks that are looked up.
        fetched: Hashes of the blocks that are to be loaded, once decided.
        end: Number of the request's blocks with those to be loaded, once decided.
        deadline: Time at which it starts with the blocks that have arrived, on the gate's clock.
        is_over: Whether the request may start.
    """

    request: Request
    num_preemptions: int
    chain: list[bytes]
    fetched: list[bytes] = field(default_factory=list)
    end: int | None = None
    deadline: float = 0.0
    is_over: bool = False

    def is_of(self, request: Request) -> bool:
        """Return whether the visit is that of a request in its present wait."""
        return request is self.request and request.metrics.num_preemptions == self.num_preemptions


class TierGate:
    """Holds requests until their blocks are loaded.

    Args:
        tiers: The executor's tiers.
        depth: Number of plans under way at once, at most.
        clock: The engine's monotonic clock, in seconds.

    Attributes:
        tiers: The executor's tiers.
        moves: The block moves of the next step; an observer of the pool.
    """

    def __init__(self, tiers: Tiers, depth: int, clock: Callable[[], float]) -> None:
        self.tiers = tiers
        # Where several plans are under way, a block that one fills may depend on blocks that turn
        # out to have no content; what was evicted is certain.
        self.moves = BlockMoves(saves=tiers.outlive and depth == 1)
        self._clock = clock
        self._visits: dict[str, Visit] = {}
        self._held: list[Visit] = []
        self._room: int | None = None  # blocks that the next step may still load; None: any number

    @property
    def is_waiting(self) -> bool:
        """Whether requests are held."""
        return bool(self._held)

    def holds(self, request: Request, queue: Queue) -> bool:
        """Return whether a queued request cannot start yet."""
        visit = self._visits.get(request.request_id)
        if visit is None or not visit.is_of(request):
            chain = self._chain(request, queue.kv)
            if not chain:
                return False
            visit = Visit(request, request.metrics.num_preemptions, chain)
            self._visits[request.request_id] = visit
            self.tiers.touch(request.block_hashes[: request.block_hashes.index(chain[0])])
        if visit.is_over or self._goes_on(visit, queue):
            return False
        self._held.append(visit)
        return True

    def step_begins(self, queue: Queue) -> None:
        """Load blocks that have arrived; queue the requests that may start now."""
        self._room = None
        if queue.running:
            self._room = max(int(LOAD_SECONDS / self.tiers.move_seconds), 1)
        held, self._held = self._held, []
        for visit in sorted(held, key=lambda visit: visit.request.order):
            if visit.request.status is not RequestStatus.WAITING_FOR_KV:
                self.tiers.leave(visit.fetched)
            elif self._goes_on(visit, queue):
                queue.release(visit.request)
            else:
                self._held.append(visit)
        if self._visits:
            ended = RequestStatus.RUNNING, RequestStatus.FINISHED
            self._visits = {
                name: visit
                for name, visit in self._visits.items()
                if visit.request.status not in ended
            }

    def wait(self, seconds: float) -> None:
        """Wait for blocks that requests are held for, at most that long."""
        if self._held:
            self.tiers.wait(seconds)

    def _chain(self, request: Request, kv: KVCacheManager) -> list[bytes]:
        """Return the blocks after those of the cache that a request could have from tiers."""
        if not kv.enable_prefix_caching or kv.spec.window is not None:
            return []
        if request.needs_whole_prompt:
            return []
        if request.num_computed_tokens != kv.num_blocks(request) * kv.block_size:
            return []  # it continues another one within a block
        # Its grammar has all of the output to follow before a token can be drawn.
        num_left = 2 if request.num_output_tokens and request.params.structured_outputs else 1
        hits = kv.get_computed_blocks(request, num_left)
        start = request.num_computed_tokens // kv.block_size + len(hits)
        stop = (request.num_tokens - num_left) // kv.block_size
        # Where the whole of it does not fit, it cannot start.
        return request.block_hashes[start:stop] if kv.has_room(request, hits) else []

    def _goes_on(self, visit: Visit, queue: Queue) -> bool:
        """Take the next step of a visit; return whether it is over."""
        if visit.end is None and not self._decide(visit, queue):
            return False
        visit.is_over = self._load(visit, queue)
        if visit.is_over:
            self.tiers.leave(visit.fetched)
        return visit.is_over

    def _decide(self, visit: Visit, queue: Queue) -> bool:
        """Decide how many blocks are loaded; return whether that could be done."""
        request, kv = visit.request, queue.kv
        now = self._clock()
        token_seconds = queue.prefill.prompt_token_seconds
        compute_seconds = kv.block_size * token_seconds
        found = self.tiers.find(visit.chain)
        if found is None:
            if not visit.deadline:
                most = PATIENCE * compute_seconds * len(visit.chain)
                visit.deadline = now + max(most, LEAST_PATIENCE)
            if now < visit.deadline:
                return False
            found = ExternalBlocks([])
        queue.stats.looked_up(request, len(visit.chain) * kv.block_size)
        count = len(found.load_seconds)
        if token_seconds:  # else nothing was computed yet
            count = num_worth_loading(found.load_seconds, found.start_seconds, compute_seconds)
        start = request.num_computed_tokens // kv.block_size
        start += len(kv.get_computed_blocks(request))
        before = request.block_hashes.index(visit.chain[0])
        visit.end = max(before + count, start)
        expected = found.start_seconds + sum(found.load_seconds[:count])
        most = max(expected, compute_seconds * count)
        visit.deadline = now + max(PATIENCE * most, LEAST_PATIENCE)
        visit.fetched = visit.chain[:count]
        self.tiers.fetch(visit.fetched)
        return True

    def _load(self, visit: Visit, queue: Queue) -> bool:
        """Load the blocks that are in memory; return whether the request waits for no more."""
        request, kv = visit.request, queue.kv
        assert visit.end is not None
        while True:
            hits = kv.get_computed_blocks(request)
            start = request.num_computed_tokens // kv.block_size + len(hits)
            wanted = request.block_hashes[start : visit.end]
            if not wanted or not kv.has_room(request, hits):
                return True
            # Those after them that the cache has need not be loaded.
            count = next((i for i, key in enumerate(wanted) if key in kv.pool.cached), len(wanted))
            ready = self.tiers.num_ready(wanted[:count])
            if ready is None:
                return True
            ready = ready if self._room is None else min(ready, self._room)
            if ready == 0:
                return self._clock() >= visit.deadline
            if self._room is not None:
                self._room -= ready
            self.tiers.claim(wanted[:ready])
            self.moves.load(kv.begin_loaded(request, hits, ready))
            queue.kept.waits(request)
            request.num_loaded_tokens += ready * kv.block_size
