"""One sequence while the engine works on it; it decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from quire.core.engine_request import EngineRequest, RangeKey
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams
from quire.core.step import NewRequest, PromptLogprobs


class RequestStatus(Enum):
    """The states of a request.

    Preempted: its blocks were freed and it waits to recompute. Waiting for KV, or at a gate: it
    does not start before it is released.
    """

    WAITING = "waiting"
    WAITING_FOR_KV = "waiting_for_kv"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The cached blocks that continue a request's computed tokens.

    Attributes:
        block_ids: Ids of the blocks, in token order.
        found_at: The state of the cache and of the request in which they were found: changes of
            the pool, the request's computed tokens, tokens that may be found, blocks that it holds.
    """

    block_ids: list[int]
    found_at: tuple[int, int, int, int]


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A prompt and what was generated from it; one of the ``n`` sequences of a user's request.

    Attributes:
        request_id: The sequence's id, unique among live ones (the runner's key).
        source: The caller's request, shared by the ``n`` sequences.
        index: Index of the sequence among the ``n``, 0 to n-1.
        token_ids: Prompt and output so far.
        num_prompt_tokens: Number of leading ``token_ids`` that are the prompt.
        max_total_tokens: Length at which the sequence ends, in tokens.
        params: Sampling settings with ``n`` = 1.
        stop_token_ids: The stop tokens of ``params``, looked up for every token; shared as
            ``source`` is.
        seed: Seed of the sequence's random draws.
        order: Sort key of queue and preemption, least first; unique.
        priority: The request's priority, lower first; 0 for all under ``fcfs``.
        pending_children: Sequences that split off in the step that ends the prompt.
        parent_id: Id of the sequence to split off from; empty for none.
        num_computed_tokens: Leading tokens whose KV is in the cache, or will be when the plans
            under way have been computed (see :class:`~quire.engine.pipeline.PlansInFlight`).
        num_cached_tokens: Prompt tokens found by a prefix cache hit.
        num_loaded_tokens: Tokens of a waiting request that tiers loaded; they count as computed.
        num_lost_tokens: The greatest number of computed tokens that a preemption has taken.
        num_prompt_logprobs: Prompt tokens (the first included) that need no more logprobs.
        was_lost: Whether a step of it once did not count, since it read blocks without content.
        block_hashes: Hashes of the leading full blocks; kept over preemption.
        prefix_match: The cached blocks found last, as long as they are sure to be those found anew.
        finish_reason: ``stop``, ``length``, ``abort``, ``timeout`` or ``error`` once finished.
        ranges: The source's ranges.
    """

    request_id: str
    source: EngineRequest
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_total_tokens: int
    params: SamplingParams
    seed: int
    order: tuple[float, int, int]
    metrics: RequestMetrics
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    status: RequestStatus = RequestStatus.WAITING
    pending_children: list[Request] = field(default_factory=list)
    parent_id: str = ""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_loaded_tokens: int = 0
    num_lost_tokens: int = 0
    num_prompt_logprobs: int = 1
    was_lost: bool = False
    block_hashes: list[bytes] = field(default_factory=list)
    prefix_match: PrefixMatch | None = None
    finish_reason: str | None = None
    ranges: tuple[RangeKey, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.ranges = self.source.ranges
        if self.params.stop_token_ids and not self.stop_token_ids:
            self.stop_token_ids = frozenset(self.params.stop_token_ids)

    @property
    def group_id(self) -> str:
        """The caller's id."""
        return self.source.request_id

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def decodes(self) -> bool:
        """Whether the next step draws a token, or computes output tokens that were not drawn."""
        num_computed = self.num_computed_tokens  # asked often, hence not decodes_after()
        return num_computed >= self.num_prompt_tokens or len(self.token_ids) - num_computed == 1

    def decodes_after(self, num_computed: int) -> bool:
        """Return :attr:`decodes` of a step that begins after that many computed tokens."""
        return num_computed >= self.num_prompt_tokens or len(self.token_ids) - num_computed == 1

    def block_keys(self, start: int, stop: int) -> tuple[str, ...]:
        """Return what the block of the positions ``[start, stop)`` depends on besides its tokens.

        The keys of all blocks stand in the first: the chain of hashes carries them on.
        """
        keys = self.source.extra_keys if start == 0 else ()
        return keys + tuple(
            f"{part.start - start}:{part.stop - start}:{part.key}"
            for part in self.ranges
            if part.start < stop and part.stop > start
        )

    @property
    def stage(self) -> str:
        """The request's stage, for reports: ``queue``, ``prefill`` or ``decode``."""
        if self.status is not RequestStatus.RUNNING:
            return "queue"
        return "decode" if self.num_output_tokens else "prefill"

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether states of all prompt positions are still wanted, which no cache hit can give."""
        return self.params.pooling == "mean" or self.needs_prompt_logprobs

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether logits of prompt positions are still wanted, which no cache hit can give."""
        return (
            self.params.prompt_logprobs is not None
            and self.num_prompt_logprobs < self.num_prompt_tokens
        )

    def announced(self, block_ids: list[int]) -> NewRequest:
        """Return the runner's description of the request as it starts with these blocks."""
        return NewRequest(
            request_id=self.request_id,
            token_ids=list(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            params=self.params,
            seed=self.seed,
            block_ids=block_ids,
            num_computed_tokens=self.num_computed_tokens,
            source=self.source,
        )

    def unreported(self, found: PromptLogprobs) -> PromptLogprobs | None:
        """Return the prompt logprobs that were not reported yet; from now on they were."""
        start = self.num_prompt_logprobs
        if not self.needs_prompt_logprobs:
            return None
        assert found.start <= start, f"prompt logprobs from {found.start}, expected from {start}"
        entries = found.entries[start - found.start :]
        self.num_prompt_logprobs += len(entries)
        return PromptLogprobs(start, entries) if entries else None


def derive_seed(*parts: int) -> int:
    """Mix integers into one seed in [0, 2**63): the same parts give the same seed everywhere."""
    text = ",".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def sequence_seed(seed: int, index: int) -> int:
    """Return the seed of the ``index``-th of a request's sequences.

    Sequence 0 draws with ``seed`` itself, so ``n`` = 1 and the first of ``n`` = 4 give equal
    tokens; the others draw with mixed seeds, so that neighbouring seeds do not share sequences.
    """
    return seed if index == 0 else derive_seed(seed, index)
