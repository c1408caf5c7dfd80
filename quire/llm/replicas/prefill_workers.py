"""Engines that compute long prompts for others, whose KV cache their blocks are sent to."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import replace

from quire.core.engine_request import EngineRequest
from quire.core.errors import QuireError
from quire.core.metrics import Samples
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.llm.replicas.dispatcher import Assignment, Dispatcher, RequestLoad
from quire.llm.replicas.prefill_choice import PrefillChoice
from quire.llm.replicas.serving_engines import ServingEngines
from quire.system.log import get_logger

log = get_logger(__name__)

#: One token is drawn and thrown away: the request is for the prompt's blocks.
_PROMPT_ALONE = SamplingParams(
    max_tokens=1,
    temperature=0.0,
    ignore_eos=True,
    detokenize=False,
    speculative=False,
    output_kind=RequestOutputKind.FINAL_ONLY,
)


class PrefillWorkers:
    """Computes prompts on other engines before the requests go where their outputs are.

    A failure here costs only time: blocks that have not arrived are computed there.

    Args:
        engines: The engines that compute prompts.
        dispatcher: The dispatcher of these engines.
        choice: The rule that chooses the prompts.
    """

    def __init__(
        self, engines: ServingEngines, dispatcher: Dispatcher, choice: PrefillChoice
    ) -> None:
        self._engines = engines
        self._dispatcher = dispatcher
        self.choice = choice
        self._num_prompts = {"apart": 0, "mixed": 0}

    async def compute(
        self, request: EngineRequest, job: RequestLoad, target: Assignment, num_others: int
    ) -> bool:
        """Compute a prompt for the engine it is assigned to if that pays; return whether it was.

        Args:
            request: The prompt's.
            job: The request's work, for the dispatchers.
            target: The engine that it goes to afterwards.
            num_others: Requests on that engine.
        """
        own = self._assign(request, job, target, num_others)
        self._num_prompts["mixed" if own is None else "apart"] += 1
        if own is None:
            return False
        num_tokens = own.prompt_tokens + self._dispatcher.loads[own.engine]
        asked = request.for_prompt_alone(_PROMPT_ALONE, target.engine)
        start = time.monotonic()
        try:
            async with aclosing(self._engines[own.engine].generate(asked)) as outputs:
                async for _ in outputs:
                    pass
        except QuireError as error:
            log.warning("%s The prompt of %s is computed elsewhere.", error, request.request_id)
            return False
        finally:
            self._dispatcher.ended(own)
        self.choice.computed(num_tokens, time.monotonic() - start, apart=True)
        return True

    def forget_prefixes(self) -> None:
        """Take note that no engine holds anything that new requests could find."""
        self._dispatcher.forget_prefixes()

    def samples(self) -> Samples:
        """Return how many prompts were computed where, by metric stem."""
        return {
            f'prefill_requests{{place="{place}"}}': count
            for place, count in self._num_prompts.items()
        }

    def _assign(
        self, request: EngineRequest, job: RequestLoad, target: Assignment, num_others: int
    ) -> Assignment | None:
        params = request.params
        if params.prompt_logprobs is not None or params.pooling is not None:
            return None  # it needs more of the prompt than its blocks
        if not self.choice.is_long(target.prompt_tokens):
            return None
        own = self._engines.choose(replace(job, max_tokens=1, num_sequences=1))
        if own is None:
            return None
        queued = self._dispatcher.loads[own.engine] - own.prompt_tokens - own.output_tokens
        if self.choice.is_apart(target.prompt_tokens, queued, num_others):
            return own
        self._dispatcher.ended(own)
        return None
