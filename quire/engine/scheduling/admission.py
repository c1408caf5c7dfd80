"""Whether the blocks last for one more request until all have ended; it starts nothing.

The estimate looks ahead: each running sequence grows by a token a step and gives its blocks back at
its end, so the blocks in use are greatest just before one of the endings. A request is let in when
that peak fits into the pool (after Gong et al. 2025, *Past-Future Scheduler for LLM Serving under
SLA Guarantees*). How far a sequence grows is learned; a preemption says that it was guessed too
low: then the guess moves towards the sequences' limits, and goes back while blocks are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.request import Request
from quire.engine.scheduling.output_lengths import OutputLengths

#: Multiples of it, modulo 1, are spread evenly.
SPREAD = 0.6180339887498949
#: The least caution after a preemption, and what is left of it after each step with free blocks.
CAUTION, CAUTION_KEPT = 0.5, 0.99
#: Part of the pool that must be free for caution to fade.
FREE_PART = 0.05

#: Steps to a request's end, its blocks now and its further blocks a step.
Growth = tuple[float, float, float]
#: By the steps to their ends, of requests: their blocks, their further blocks a step, their number.
Groups = dict[float, tuple[float, float, int]]


class GrowthForecast:
    """The expected growth of the running requests, made for each step that is planned.

    Args:
        running: The running requests; the outlook holds until one of them ends or gets blocks.
        grow: Function that estimates the growth of each request.

    Attributes:
        num_seqs: Number of running sequences, those that are yet to split off included.
    """

    def __init__(
        self, running: Sequence[Request], grow: Callable[[Sequence[Request]], list[Growth]]
    ) -> None:
        self.num_seqs = sum(1 + len(request.pending_children) for request in running)
        self._running, self._grow = running, grow
        self._groups: Groups | None = None
        self._bound = 0.0

    @property
    def groups(self) -> Groups:
        """The requests that run, and those added since, by the steps to their ends."""
        if self._groups is None:
            parts = self._grow(self._running)
            self._groups = _group(parts)
            self._bound = sum(map(_most, parts))
        return self._groups

    def add(self, num_seqs: int, own: Growth) -> None:
        """A request of ``num_seqs`` sequences starts."""
        self.num_seqs += num_seqs
        _put(self.groups, own)
        self._bound += _most(own)

    def fits(self, own: Growth, num_blocks: int) -> bool:
        """Return whether the peak with one more is within ``num_blocks``.

        Most often a bound says so; the peak itself costs a look at all groups. A step that starts
        many looks at all about as often as the blocks that are left halve.
        """
        groups, most = self.groups, _most(own)
        if self._bound + most > num_blocks:
            self._bound = _peak(groups)[1]
        if self._bound + most <= num_blocks:
            return True
        with_own = dict(groups)
        _put(with_own, own)
        return _peak(with_own)[0] <= num_blocks


class Admission:
    """Looks ahead at the growth of running requests.

    Args:
        kv: The pool and what each request holds of it.

    Attributes:
        lengths: The estimate of how long outputs get.
        caution: 0: sequences end as those before did; 1: all run to their limits.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self.lengths = OutputLengths()
        self.caution = 0.0

    def outlook(self, running: Sequence[Request]) -> GrowthForecast:
        """Return how the running requests grow."""
        return GrowthForecast(running, self.growth)

    def admits(self, outlook: GrowthForecast, own: Growth) -> bool:
        """Return whether a request can start and most likely no other is preempted for it.

        Args:
            outlook: The outlook of all running requests; where none runs, every request is let in.
            own: The expected growth of the waiting request.
        """
        return not outlook.num_seqs or outlook.fits(own, self._kv.pool.num_blocks - 1)

    def expected_usage(self, running: Sequence[Request]) -> float:
        """Return the part of the pool that is expected to be in use at the peak; 0 and more."""
        return _peak(_group(self.growth(running)))[0] / (self._kv.pool.num_blocks - 1)

    def growth(self, running: Sequence[Request]) -> list[Growth]:
        """Return how each running request grows; good until one of them ends or gets blocks."""
        num_held = [self._kv.num_blocks(request) for request in running]
        # Blocks that several hold count once, shared out evenly.
        part = self._kv.pool.num_used / max(sum(num_held), 1)
        return [
            self._one(request, held * (part - 1))
            for request, held in zip(running, num_held, strict=True)
        ]

    def own_growth(self, request: Request, hits: Sequence[int]) -> Growth:
        """Return how a waiting request would grow that begins with these cached blocks."""
        num_shared = sum(self._kv.pool.ref_cnt[block_id] > 0 for block_id in hits)
        return self._one(request, -num_shared)

    def preempted(self) -> None:
        """The blocks did not last."""
        self.caution = min(1.0, max(2 * self.caution, CAUTION))

    def step_planned(self) -> None:
        """A step has its blocks."""
        pool = self._kv.pool
        if self.caution and pool.num_free > FREE_PART * pool.num_blocks:
            self.caution *= CAUTION_KEPT

    def ended(self, request: Request, reason: str) -> None:
        """A sequence has ended, for the reason stated."""
        if request.num_output_tokens and reason != "error":
            self.lengths.observe(request.num_output_tokens, reason == "stop")

    def _one(self, request: Request, num_extra: float) -> Growth:
        num_blocks = self._kv.spec.num_blocks
        num_tokens = len(request.token_ids)
        limit = max(request.max_total_tokens - num_tokens, 1)
        # Sequences end one after another: each stands for another part of them, evenly spread.
        part = SPREAD * (request.order[1] + request.order[2]) % 1
        part += self.caution * (1 - part)
        rest = self.lengths.rest(num_tokens - request.num_prompt_tokens, limit, part)
        # The last token's KV is never written.
        reserved = self._kv.layout.num_reserved
        now = max(num_blocks(num_tokens), reserved)
        last = max(num_blocks(num_tokens + rest - 1), reserved)
        width = 1 + len(request.pending_children)
        return rest, now + num_extra + width - 1, width * (last - now) / rest


def _group(parts: Iterable[Growth]) -> Groups:
    groups: Groups = {}
    for part in parts:
        _put(groups, part)
    return groups


def _put(groups: Groups, part: Growth) -> None:
    steps, own, own_growth = part
    blocks, growth, count = groups.get(steps, (0.0, 0.0, 0))
    groups[steps] = blocks + own, growth + own_growth, count + 1


def _most(part: Growth) -> float:
    """Return a bound of what a sequence adds to the peak: its blocks at its end, and a half."""
    steps, own, own_growth = part
    return own + own_growth * steps + 0.5


def _peak(groups: Groups) -> tuple[float, float]:
    """Return the most blocks in use at once, and a bound to which others add :func:`_most`.

    The bound counts half a block for sequences that end at the same time, too, because one that
    ends just before them may come: then they go on.
    """
    peak = bound = blocks = growth = 0.0
    num_longer = 0
    for steps, (own, own_growth, count) in sorted(groups.items(), reverse=True):
        blocks += own
        growth += own_growth
        # Those that go on hold whole blocks: half a block each above the line to their ends.
        in_use = blocks + growth * steps + num_longer / 2
        peak = max(peak, in_use)
        bound = max(bound, in_use + count / 2)
        num_longer += count
    return peak, bound
