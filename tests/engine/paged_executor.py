"""A deterministic executor over a simulated paged cache, and its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from quire.core.errors import FailureKind, RequestFailure
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.sampling_params import SamplingParams
from quire.core.step import (
    PromptLogprobs,
    ScheduledRequest,
    SchedulerOutput,
    SequenceResult,
    StepInterrupted,
    StepOutput,
    TokenLogprobs,
)
from quire.engine.gates.adapter_gate import Adapters
from quire.engine.gates.picture_gate import Pictures
from quire.engine.gates.tier_gate import Tiers
from quire.kernels.batch.token_table import TokenTable
from quire.runner.step.step_retry import StepRetry

VOCAB_SIZE = 1000


def digest(*parts: object) -> int:
    """Hash anything to an integer."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest(), "little")


def next_token(context: int, seed: int, position: int, greedy: bool) -> int:
    """The token the simulated model draws after a context (the hash of its KV)."""
    return digest(context, position) % VOCAB_SIZE if greedy else digest(context, seed) % VOCAB_SIZE


def fold(values: list[int]) -> list[int]:
    """Running hashes over a sequence: entry ``i`` depends on values 0..i."""
    state, folded = 0, []
    for value in values:
        state = hash((state, value))
        folded.append(state)
    return folded


def followers(token_id: int) -> list[int]:
    """The tokens that a :class:`ForcingExecutor` puts after a drawn one."""
    count = token_id % 3 and token_id % 7
    return [digest("forced", token_id, i) % VOCAB_SIZE for i in range(count)]


def oracle(
    prompt: list[int],
    params: SamplingParams,
    seed: int,
    num_tokens: int,
    *,
    forces: bool = False,
    mix: Callable[[list[int]], list[int]] | None = None,
) -> list[int]:
    """Generate with no cache, no blocks and no batch."""
    if mix is not None:
        tokens = list(prompt)
        for length in range(len(prompt), len(prompt) + num_tokens):
            context = mix(mix(tokens))[-1]
            tokens.append(next_token(context, seed, length, params.temperature == 0))
        return tokens[len(prompt) :]
    tokens, first, second = list(prompt), 0, 0
    unread = tokens
    while len(tokens) < len(prompt) + num_tokens:
        for token in unread:
            first = hash((first, token))
            second = hash((second, first))
        drawn = next_token(second, seed, len(tokens), params.temperature == 0)
        unread = [drawn, *(followers(drawn) if forces else ())]
        tokens += unread
    return tokens[len(prompt) :][:num_tokens]


@dataclass
class Held:
    """What the executor knows of a request."""

    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    block_ids: list[int]


@dataclass
class Computed:
    """A row of a step, and what came out for each of its sequence's tokens so far."""

    row: ScheduledRequest
    held: Held
    folded: list[int]


@dataclass
class Handle:
    """A step that is computed when its result is asked for."""

    result: Callable[[], StepOutput]


class PagedExecutor:
    """A two-layer "transformer" of hashes whose KV lives in slots, read through block tables.

    Layer 1 keeps each token's id; layer 2 keeps a hash of all of layer 1 up to the position, so
    a slot's content depends on everything before it, as KV does. As in a real model each layer
    writes all rows before any row reads. A wrong table, a stale prefix block or a missing copy
    changes the tokens.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.kv_cache_spec = KVCacheSpec(
            num_layers=2, num_kv_heads=1, head_dim=1, block_size=block_size, dtype="float32"
        )
        self.num_blocks = num_blocks
        self.depth = 1
        self.failure = None
        self.adapters: Adapters | None = None
        self.pictures: Pictures | None = None
        self.outgoing = None
        self.tiers: Tiers | None = None
        self.layers: list[dict[int, int]] = [{}, {}]
        self.held: dict[str, Held] = {}
        self.plans: list[SchedulerOutput] = []
        self.at_work: frozenset[str] = frozenset()  # requests whose grammars are slow
        self.fail: Callable[[SchedulerOutput], dict[str, str]] | None = None
        self.on_step: Callable[[SchedulerOutput], object] = lambda plan: None
        self.on_result: Callable[[StepOutput], object] = lambda result: None

    #: What a layer makes of all positions.
    mix = staticmethod(fold)

    def check(self) -> None:
        pass

    def submit(self, plan: SchedulerOutput, request_arrived: Callable[[], bool]) -> Handle:
        return Handle(lambda: self.execute(plan, request_arrived))

    def execute(self, plan: SchedulerOutput, request_arrived: Callable[[], bool]) -> StepOutput:
        self.plans.append(plan)
        self.on_step(plan)
        self._take_news(plan)
        drops = plan.abortable_ids and request_arrived()
        result = self._drop(plan) if drops else self._compute(plan)
        if self.fail is not None:
            for request_id, error in self.fail(plan).items():
                result.results[request_id] = SequenceResult(
                    error=RequestFailure(FailureKind.ENGINE, error)
                )
        self.on_result(result)
        return result

    def _drop(self, plan: SchedulerOutput) -> StepOutput:
        """Compute a step without the rows that may be dropped, as the runner does."""
        self._compute(SchedulerOutput(block_copies=plan.block_copies))
        for row in plan.scheduled:  # some of it was written; which part is unknown
            if row.request_id in plan.abortable_ids:
                held = self.held[row.request_id]
                for position in self._positions(row):
                    self.layers[0][self._slot(held.block_ids, position)] = -7
        table = TokenTable(len(self.held), self.num_blocks)
        for number, (name, held) in enumerate(self.held.items()):
            table.rows[name] = number
            table.block_ids[number, : len(held.block_ids)] = held.block_ids

        def compute(part: SchedulerOutput) -> StepOutput:
            if part.abortable_ids:
                raise StepInterrupted
            return self._compute(part)

        parts = StepRetry(table, self.kv_cache_spec.block_size, lambda part: lambda: compute(part))
        return parts.begin(plan, {}, [])()

    def _compute(self, plan: SchedulerOutput) -> StepOutput:
        return self._draw(plan, self._write(plan))

    def _write(self, plan: SchedulerOutput) -> list[Computed]:
        """Copy blocks and compute the plan's rows; nothing is drawn."""
        for layer in self.layers:
            for source, destination in plan.block_copies:
                for offset in range(self.kv_cache_spec.block_size):
                    copied = layer.get(self._slot([source], offset))
                    if copied is not None:
                        layer[self._slot([destination], offset)] = copied
        rows = [(r, self.held[r.request_id]) for r in plan.scheduled]
        written: set[int] = set()
        for row, held in rows:
            assert row.samples == (
                row.num_computed_tokens + row.num_scheduled_tokens == len(held.token_ids)
            )
            for position in self._positions(row):
                slot = self._slot(held.block_ids, position)
                assert slot >= self.kv_cache_spec.block_size, "write into the null block"
                assert slot not in written, f"slot {slot} is written twice in one step"
                written.add(slot)
                self.layers[0][slot] = held.token_ids[position]
        hidden = [self.mix(self._read(0, held, row)) for row, held in rows]
        for (row, held), values in zip(rows, hidden, strict=True):
            for position in self._positions(row):
                self.layers[1][self._slot(held.block_ids, position)] = values[position]
        return [Computed(row, held, self.mix(self._read(1, held, row))) for row, held in rows]

    def _draw(self, plan: SchedulerOutput, computed: list[Computed]) -> StepOutput:
        result = StepOutput()
        forks = {fork.parent_id: [] for fork in plan.forks}
        for fork in plan.forks:
            forks[fork.parent_id].append(fork)
        for one in computed:
            self._sample(one, forks.get(one.row.request_id, []), result)
        return result

    def unready(self) -> frozenset[str]:
        return frozenset(self.held) & self.at_work

    def wait_until_ready(self, seconds: float) -> None:
        self.at_work = frozenset()

    def stats(self) -> dict[str, float]:
        return {}

    def shutdown(self) -> None:
        self.held.clear()

    def _take_news(self, plan: SchedulerOutput) -> None:
        for request_id in plan.finished_request_ids:
            del self.held[request_id]
        for new in plan.new_requests:
            assert new.request_id not in self.held, f"{new.request_id} is new twice"
            assert new.params.n == 1
            self.held[new.request_id] = Held(
                list(new.token_ids),
                new.num_prompt_tokens,
                new.params,
                new.seed,
                list(new.block_ids),
            )
        for request_id, index, block_id in plan.replaced_blocks:
            self.held[request_id].block_ids[index] = block_id
        for row in plan.scheduled:
            self.held[row.request_id].block_ids += row.new_block_ids

    def _sample(self, one: Computed, forks: list[Any], result: StepOutput) -> None:
        row, held, folded = one.row, one.held, one.folded
        if held.params.prompt_logprobs is not None:
            stop = min(
                row.num_computed_tokens + row.num_scheduled_tokens + 1, held.num_prompt_tokens
            )
            start = row.num_computed_tokens + 1
            entries = [
                TokenLogprobs(held.token_ids[p], -float(folded[p - 1] % 97), 1, [])
                for p in range(start, stop)
            ]
            if entries:
                found = result.result(row.request_id)
                found.prompt_logprobs = PromptLogprobs(start, entries)
        if not row.samples:
            return
        sequences = [(row.request_id, held)]
        for fork in forks:
            child = Held(
                list(held.token_ids),
                held.num_prompt_tokens,
                fork.params,
                fork.seed,
                list(held.block_ids),
            )
            self.held[fork.child_id] = child
            sequences.append((fork.child_id, child))
        for request_id, sequence in sequences:
            token = next_token(
                folded[-1], sequence.seed, len(sequence.token_ids), sequence.params.temperature == 0
            )
            sequence.token_ids.append(token)
            found = result.result(request_id)
            found.token_ids = [token]
            if sequence.params.logprobs is not None:
                found.logprobs = [TokenLogprobs(token, -1.0, 1, [])]

    def _positions(self, row: ScheduledRequest) -> range:
        return range(row.num_computed_tokens, row.num_computed_tokens + row.num_scheduled_tokens)

    def _slot(self, block_ids: list[int], position: int) -> int:
        size = self.kv_cache_spec.block_size
        return block_ids[position // size] * size + position % size

    def _read(self, layer: int, held: Held, row: ScheduledRequest) -> list[int]:
        length = row.num_computed_tokens + row.num_scheduled_tokens
        return [self.layers[layer].get(self._slot(held.block_ids, p), -1) for p in range(length)]


class WindowExecutor(PagedExecutor):
    """Each position sees no more than the last seven."""

    WINDOW = 7

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.kv_cache_spec = replace(self.kv_cache_spec, window=self.WINDOW, step_tokens=12)

    @classmethod
    def mix(cls, values: list[int]) -> list[int]:
        return [hash(tuple(values[max(i - cls.WINDOW, 0) : i])) for i in range(1, len(values) + 1)]


class CountingExecutor(PagedExecutor):
    """Samples token 1 always and simulates no cache: for long prompts and counts."""

    def _compute(self, plan: SchedulerOutput) -> StepOutput:
        result = StepOutput()
        for row in plan.scheduled:
            if row.samples:
                self.held[row.request_id].token_ids.append(1)
                result.result(row.request_id).token_ids = [1]
        return result


class ForcingExecutor(PagedExecutor):
    """Puts tokens after some of those it draws, as grammars do; heedless of the sequence's end."""

    def _compute(self, plan: SchedulerOutput) -> StepOutput:
        result = super()._compute(plan)
        for request_id, found in result.results.items():
            forced = followers(found.token_ids[0])
            found.token_ids += forced
            found.num_forced = len(forced)
            self.held[request_id].token_ids += forced
        return result


class AcceptingExecutor(PagedExecutor):
    """Yields four tokens a step: two accepted, one drawn, one forced; its KV does not matter."""

    def _compute(self, plan: SchedulerOutput) -> StepOutput:
        result = StepOutput()
        for row in plan.scheduled:
            entries = [TokenLogprobs(i, -1.0, 1, []) for i in range(3)]
            result.results[row.request_id] = SequenceResult([0, 1, 2, 3], 2, 1, entries)
        return result


class ProposingExecutor(PagedExecutor):
    """Computes proposed tokens, of which some are wrong, with the known ones; writes them, too."""

    def _write(self, plan: SchedulerOutput) -> list[Computed]:
        rows = []
        for row in plan.scheduled:
            held = self.held[row.request_id]
            guesses = self._guesses(row, held) if row.num_lookahead_tokens else []
            held.token_ids += guesses
            length = row.num_scheduled_tokens + len(guesses)
            proposed = {"num_scheduled_tokens": length, "num_lookahead_tokens": len(guesses)}
            rows.append(replace(row, **proposed))
        return super()._write(replace(plan, scheduled=rows))

    def _guesses(self, row: ScheduledRequest, held: Held) -> list[int]:
        count = digest("count", held.token_ids) % (row.num_lookahead_tokens + 1)
        right = oracle(held.token_ids, held.params, held.seed, count)
        return [token + (digest("wrong", token) % 4 == 0) for token in right]

    def _sample(self, one: Computed, forks: list[Any], result: StepOutput) -> None:
        row, held, folded = one.row, one.held, one.folded
        count = row.num_lookahead_tokens
        if not count:
            super()._sample(one, forks, result)
            return
        known, guesses = held.token_ids[:-count], held.token_ids[-count:]
        kept: list[int] = []
        while len(kept) <= count and kept == guesses[: len(kept)]:
            at = len(known) + len(kept)
            greedy = held.params.temperature == 0
            kept.append(next_token(folded[at - 1], held.seed, at, greedy))
        held.token_ids = known + kept
        found = result.result(row.request_id)
        found.token_ids, found.num_proposed = kept, count
        found.num_accepted = len(kept) - 1
        if held.params.logprobs is not None:
            found.logprobs = [TokenLogprobs(token, -1.0, 1, []) for token in kept]
