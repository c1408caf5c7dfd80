"""``ReplicatedEngine``: several engines of one model as one.

Requests are sent on from the event loop that they arrive in. The likely work of each engine decides
where they go; an engine that is lost is left out until it serves again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from quire.core.adapter_reference import AdapterReference
from quire.core.engine_request import EngineRequest
from quire.core.errors import CapacityError, EngineDeadError
from quire.core.metrics import Samples, add_label, add_up
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind
from quire.engine.request import derive_seed
from quire.llm.engine_client import EngineProgress
from quire.llm.engine_views import SharedEngine
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.dispatcher import Assignment, Dispatcher, RequestLoad
from quire.llm.replicas.pools import PromptPools
from quire.llm.replicas.prefill_choice import PrefillChoice
from quire.llm.replicas.prefill_workers import PrefillWorkers
from quire.llm.replicas.prefix_index import block_names
from quire.llm.replicas.resumed_outputs import GivenOutputs
from quire.llm.replicas.roles import NO_ROLES, Roles
from quire.llm.replicas.serving_engines import ServingEngines
from quire.settings.config import EngineConfig, ModelOptions
from quire.system.log import get_logger
from quire.text.tokenizers.tokenizer import Tokenizer

log = get_logger(__name__)

#: A request whose engine dies before its reader's client has seen anything is tried once more
#: elsewhere. Not more often: it may be what the engine died of.
MOST_TRIES = 2


class ReplicatedEngine(SharedEngine):
    """Engines of one model.

    Each request goes to one of them. When that dies before the request's first output, or before
    the end of an answer that is read as a whole, another one answers; else the request ends with
    ``EngineDeadError``, as it does with one engine.

    Args:
        engines: Loaded engines with the same settings; this one owns them and ends them.
        roles: Roles of the last engines; without any, requests go to all alike.
    """

    def __init__(self, engines: Sequence[EngineProxy], roles: Roles = NO_ROLES) -> None:
        self._all = list(engines)
        self._engines = engines = self._all[: len(engines) - roles.num_prefill]
        first = engines[0]
        self.config: EngineConfig = first.config
        self.model_config = first.model_config
        self.max_model_len = min(engine.max_model_len for engine in engines)
        self.tokenizer = first.tokenizer
        self.default_sampling_params = first.default_sampling_params
        self._block_size = self.config.cache.block_size
        num_short = len(engines) - roles.num_long
        self._dispatcher: Dispatcher | PromptPools = self._create_dispatcher(0, num_short)
        if roles.num_long:
            of_long = self._create_dispatcher(num_short, len(engines))
            self._dispatcher = PromptPools(self._dispatcher, of_long, roles.long_tokens)
        self._serving = ServingEngines(dict(enumerate(engines)), self._dispatcher)
        self._prefill: PrefillWorkers | None = None
        if roles.num_prefill:
            workers = {number: self._all[number] for number in range(len(engines), len(self._all))}
            own = self._create_dispatcher(len(engines), len(self._all))
            choice = PrefillChoice(roles.prefill_tokens)
            self._prefill = PrefillWorkers(ServingEngines(workers, own), own, choice)
        self._num_live: Counter[int] = Counter()
        # Of live requests, and of ended ones whose blocks are kept.
        self._places: dict[str, int] = {}
        self._numbers = itertools.count()
        self._closed = False

    @property
    def engines(self) -> Sequence[EngineProxy]:
        """The engines by their numbers; those for prompts are the last."""
        return self._all

    def read_texts(self, options: ModelOptions) -> tuple[Tokenizer, dict[str, Any]]:
        return self._engines[0].read_texts(options)

    async def generate(self, request: EngineRequest, /) -> AsyncGenerator[RequestOutput, None]:
        if request.params.seed is None:  # as one engine would draw it, whichever computes it
            seed = derive_seed(self.config.seed, next(self._numbers))
            request = replace(request, params=replace(request.params, seed=seed))
        job, given = self._job(request), GivenOutputs()
        goes_on = request.is_whole and request.params.output_kind is RequestOutputKind.DELTA
        for num_tries in itertools.count(1):
            assignment = self._assign(request, job)
            is_answered = False
            try:
                outputs = self._outputs(request, job, assignment)
                async for output in given.rest(outputs) if given else outputs:
                    is_answered = not goes_on
                    if goes_on:
                        given.add(output)
                    yield output
                return
            except (EngineDeadError, CapacityError) as error:
                is_lost = isinstance(error, EngineDeadError)
                is_lost = is_lost or not self._serving.serves(assignment.engine)
                if is_answered or not is_lost or self._closed or num_tries == MOST_TRIES:
                    raise
                log.warning("%s Request %s goes to another engine.", error, request.request_id)

    async def abort(self, request_id: str) -> None:
        place = self._places.pop(request_id, None)
        if place is not None:
            await self._engines[place].abort(request_id)

    def check_health(self) -> None:
        """Check that at least one engine takes requests.

        Raises:
            EngineDeadError: The engines were shut down, or all are being restarted.
        """
        for engine in self._engines[1:]:
            with suppress(EngineDeadError):
                return engine.check_health()
        return self._engines[0].check_health()

    def progress(self) -> EngineProgress:
        """Return how the engines get on: as the one that is worst off."""
        each = [engine.progress() for engine in self._all]
        return EngineProgress(
            sum(one.pending for one in each),
            min(one.last_step_age for one in each),
            max(one.stalled_seconds for one in each),
            max(one.oldest_queue_age for one in each),
            max(one.step_seconds for one in each),
        )

    def stats(self) -> Samples:
        """Return the counters and gauges of each engine, labelled with its number."""
        own = {} if self._prefill is None else self._prefill.samples()
        return own | {
            add_label(name, "engine", str(number)): value
            for number, engine in enumerate(self._all)
            for name, value in engine.stats().items()
        }

    async def describe_cache(self) -> str:
        told = []
        for number, engine in enumerate(self._all):
            with suppress(CapacityError):  # one that is being restarted has no blocks
                told.append(f"engine {number}\n{await engine.describe_cache()}")
        return "\n".join(told)

    async def reset_prefix_cache(self) -> None:
        self._dispatcher.forget_prefixes()
        if self._prefill is not None:
            self._prefill.forget_prefixes()
        for engine in self._all:
            with suppress(CapacityError):  # one that is being restarted has computed nothing
                await engine.reset_prefix_cache()

    def read_adapter(self, name: str, folder: str) -> AdapterReference:
        return self._engines[0].read_adapter(name, folder)

    async def shutdown(self) -> None:
        self._closed = True
        await asyncio.gather(*(engine.shutdown() for engine in self._all))

    def _create_dispatcher(self, start: int, stop: int) -> Dispatcher:
        num_blocks = {
            number: int(add_up(self._all[number].stats(), "num_kv_blocks"))
            for number in range(start, stop)
        }
        options = self.config.scheduler
        return Dispatcher(num_blocks, self._block_size, options.max_num_batched_tokens)

    def _job(self, request: EngineRequest) -> RequestLoad:
        prompt, params = request.prompt_token_ids, request.params
        names = block_names(prompt, self._block_size, request.extra_keys, request.ranges)
        return RequestLoad(names, len(prompt), params.max_tokens, params.n)

    def _assign(self, request: EngineRequest, job: RequestLoad) -> Assignment:
        """Return the engine for a request.

        Raises:
            CapacityError: All engines are being restarted.
            EngineDeadError: The engines were shut down.
        """
        place = self._place_of_blocks(request)
        if place is not None and self._serving.serves(place):
            return self._dispatcher.assign(place, job)
        if (assignment := self._serving.choose(job)) is not None:
            return assignment
        self._engines[0].check_serving()
        return self._assign(request, job)  # it has just come back

    def _place_of_blocks(self, request: EngineRequest) -> int | None:
        """Return the engine that keeps the blocks a request continues from, or gives up."""
        continuation = request.continuation
        of_blocks = (continuation.continues, *continuation.releases)
        return next((self._places[i] for i in of_blocks if i in self._places), None)

    async def _outputs(
        self, request: EngineRequest, job: RequestLoad, assignment: Assignment
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what an engine answers, and have the dispatcher know how far it is."""
        request_id, dispatcher = request.request_id, self._dispatcher
        is_delta = request.params.output_kind is RequestOutputKind.DELTA
        num_tokens, is_finished = 0, False
        is_new = request_id not in self._places
        if is_new:
            self._places[request_id] = assignment.engine
        for ended_id in request.continuation.releases:
            self._places.pop(ended_id, None)
        self._num_live[assignment.engine] += 1
        start, num_prompt_tokens = time.monotonic(), assignment.prompt_tokens
        outputs: AsyncGenerator[RequestOutput, None] | None = None
        try:
            is_apart = await self._compute_apart(request, job, assignment)
            outputs = self._engines[assignment.engine].generate(request)
            async for output in outputs:
                if assignment.prompt_tokens:
                    if self._prefill is not None and not is_apart:
                        seconds = time.monotonic() - start
                        self._prefill.choice.computed(num_prompt_tokens, seconds, apart=False)
                    dispatcher.answered(assignment)
                new = sum(len(one.token_ids) for one in output.outputs)
                num_tokens = num_tokens + new if is_delta else new
                is_finished = output.finished
                yield output
        finally:
            if outputs is not None:
                await outputs.aclose()
            self._num_live[assignment.engine] -= 1
            dispatcher.ended(assignment, num_tokens / request.params.n if is_finished else None)
            if is_new and not (request.continuation.keeps_blocks and is_finished):
                self._places.pop(request_id, None)  # an abort has taken it

    async def _compute_apart(
        self, request: EngineRequest, job: RequestLoad, assignment: Assignment
    ) -> bool:
        if self._prefill is None:
            return False
        others = self._num_live[assignment.engine] - 1
        return await self._prefill.compute(request, job, assignment, others)
