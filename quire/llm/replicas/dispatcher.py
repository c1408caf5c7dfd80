"""The choice of an engine for each request: pure policy, in tokens, without messages or waits.

An engine gets a request at once and has its own fair queue. So no client's requests are held back
here, however many another client sends: the only decision is where they wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.engine.scheduling.lazy_heap import LazyHeap
from quire.llm.replicas.prefix_index import PrefixIndex

#: No engine gets a request that makes its load more than this many times the mean, as long as
#: there is another one.
MOST_LOAD = 1.5
#: A token that has to be computed delays one request now and all that follow; one that waits there
#: already would be computed in any case.
WORK_WEIGHT = 4
#: Assumed length of outputs without a limit, until some have ended.
FIRST_OUTPUT_TOKENS = 256
#: Part of a new output's length in the mean of those before.
_NEW_PART = 0.05


@dataclass(slots=True)
class RequestLoad:
    """The work of a request for an engine.

    Attributes:
        names: Names of the blocks of its prompt that a cache may hold, see
            :func:`quire.llm.replicas.prefix_index.block_names`.
        num_prompt_tokens: Tokens of its prompt.
        max_tokens: Limit of each output; None for none.
        num_sequences: Number of outputs.
    """

    names: Sequence[int]
    num_prompt_tokens: int
    max_tokens: int | None
    num_sequences: int = 1


@dataclass(slots=True)
class Assignment:
    """A request at an engine.

    Attributes:
        engine: Number of the engine.
        prompt_tokens: Tokens of the prompt that are likely to be computed; 0 once they are.
        output_tokens: Tokens that are likely to follow.
        kv_tokens: Tokens that it is likely to hold at its end.
    """

    engine: int
    prompt_tokens: int
    output_tokens: int
    kv_tokens: int


class Dispatcher:
    """Chooses an engine for each request, in a time that does not depend on their number.

    An engine's load is the tokens of its requests that are likely to be computed still. A request
    goes where the sum of three is least: its own tokens to be computed, without those that are
    cached, each counted :data:`WORK_WEIGHT` times; the engine's load; and the tokens that do not
    fit in its KV cache. The candidates are the engines that hold most of the prompt, and the one
    with the least load.

    Args:
        num_blocks: KV blocks of each engine, by its number.
        block_size: Tokens a block.
        step_tokens: Tokens of a step; an engine's load may always exceed the others' by this much.
    """

    def __init__(self, num_blocks: Mapping[int, int], block_size: int, step_tokens: int) -> None:
        self._block_size = block_size
        self._capacity = {engine: count * block_size for engine, count in num_blocks.items()}
        self._step_tokens = step_tokens
        self._index = PrefixIndex(num_blocks)
        self._load = dict.fromkeys(num_blocks, 0)
        self._kv_tokens = dict.fromkeys(num_blocks, 0)
        self._total_load = 0
        self._serving = set(num_blocks)
        self._turns = dict.fromkeys(num_blocks, 0)  # of equal ones the first
        self._num_turns = 0
        self._mean_output = float(FIRST_OUTPUT_TOKENS)
        self._least: LazyHeap[int] = LazyHeap(self._key)
        for engine in num_blocks:
            self._least.push(engine)

    @property
    def loads(self) -> Mapping[int, int]:
        """Tokens that each engine is likely to compute still."""
        return self._load

    def choose(self, job: RequestLoad) -> Assignment | None:
        """Return where a request goes, which counts from now on; None when no engine serves."""
        least = self._least.first()
        if least is None:
            return None
        best, cost = least, self._cost(least, job)
        most = self._most_load(job)
        for engine in self._index.holders(job.names):
            if engine not in self._serving or engine == least:
                continue
            own = self._cost(engine, job)
            if own < cost and self._load[engine] + self._work(engine, job) <= most:
                best, cost = engine, own
        return self.assign(best, job)

    def assign(self, engine: int, job: RequestLoad) -> Assignment:
        """Assign a request to a certain engine; see :meth:`choose`."""
        outputs = self._output_tokens(job)
        work = job.num_prompt_tokens - self._cached(engine, job)
        made = Assignment(engine, work, outputs, work + outputs)
        self._index.add(engine, job.names)
        self._num_turns += 1
        self._turns[engine] = self._num_turns
        self._kv_tokens[engine] += made.kv_tokens
        self._add_load(engine, work + outputs)
        return made

    def answered(self, assignment: Assignment) -> None:
        """Take note of a request's first output: its prompt is computed."""
        self._add_load(assignment.engine, -assignment.prompt_tokens)
        assignment.prompt_tokens = 0

    def ended(self, assignment: Assignment, num_output_tokens: float | None = None) -> None:
        """Take note of a request's end, and of how long its outputs became if they were not cut."""
        self._add_load(assignment.engine, -assignment.prompt_tokens - assignment.output_tokens)
        self._kv_tokens[assignment.engine] -= assignment.kv_tokens
        if num_output_tokens is not None:
            self._mean_output += _NEW_PART * (num_output_tokens - self._mean_output)

    def lost(self, engine: int) -> None:
        """Take note that an engine takes nothing, and that what it held is gone."""
        self._serving.discard(engine)
        self._index.clear(engine)

    def found(self, engine: int) -> None:
        """Take note that an engine takes requests again."""
        self._serving.add(engine)
        self._least.push(engine)

    def forget_prefixes(self) -> None:
        """Take note that no engine holds anything that new requests could find."""
        for engine in self._load:
            self._index.clear(engine)

    def _key(self, engine: int) -> tuple[int, int] | None:
        return (self._load[engine], self._turns[engine]) if engine in self._serving else None

    def _add_load(self, engine: int, tokens: int) -> None:
        self._load[engine] += tokens
        self._total_load += tokens
        if tokens < 0:  # that it has grown is seen where it is looked at
            self._least.push(engine)

    def _cached(self, engine: int, job: RequestLoad) -> int:
        return self._index.depth(engine, job.names) * self._block_size

    def _output_tokens(self, job: RequestLoad) -> int:
        each = round(self._mean_output)
        if job.max_tokens is not None:
            each = min(each, job.max_tokens)
        return each * job.num_sequences

    def _work(self, engine: int, job: RequestLoad) -> int:
        return job.num_prompt_tokens - self._cached(engine, job) + self._output_tokens(job)

    def _cost(self, engine: int, job: RequestLoad) -> int:
        work = self._work(engine, job)
        pressure = self._kv_tokens[engine] + work - self._capacity[engine]
        return WORK_WEIGHT * work + self._load[engine] + max(0, pressure)

    def _most_load(self, job: RequestLoad) -> float:
        """Return what an engine's load may be with one more request."""
        total = self._total_load + job.num_prompt_tokens + self._output_tokens(job)
        return MOST_LOAD * total / len(self._serving) + self._step_tokens
