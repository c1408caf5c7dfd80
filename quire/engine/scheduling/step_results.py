"""Results of steps for sequences: tokens, endings and requests that are computed anew."""

from __future__ import annotations

from collections.abc import Container

from quire.core.step import NotComputed, SchedulerOutput, SequenceResult, StepOutput
from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.engine_output import EngineOutput
from quire.engine.request import Request
from quire.engine.scheduling.fair_queue import OUTPUT_TOKEN_COST
from quire.engine.scheduling.live_sequences import LiveSequences
from quire.engine.scheduling.lookahead import Lookahead
from quire.engine.scheduling.stop_conditions import check_stop


class StepResults:
    """Applies results to sequences.

    Args:
        sequences: The live sequences.
        kv: Blocks of all requests.
        eos_token_ids: End-of-sequence ids.
        use_cache: Whether the KV cache is used; else each new token recomputes all before it.
    """

    def __init__(
        self,
        sequences: LiveSequences,
        kv: KVCacheManager,
        eos_token_ids: Container[int],
        use_cache: bool,
    ) -> None:
        self._sequences = sequences
        self._kv = kv
        self._eos_token_ids = eos_token_ids
        self._use_cache = use_cache

    def apply(
        self, plan: SchedulerOutput, result: StepOutput, now: float, lookahead: Lookahead | None
    ) -> list[EngineOutput]:
        """Apply a step's results; return an output for each sequence that has one.

        Args:
            plan: The plan of the step.
            result: The step's result.
            now: The time on the engine's clock.
            lookahead: The slots for proposed tokens; None where nothing is proposed.
        """
        outputs: list[EngineOutput] = []
        for scheduled in plan.scheduled:
            request = self._sequences.by_id[scheduled.request_id]
            why = result.not_computed.get(scheduled.request_id)
            if why is NotComputed.LOST:
                self._sequences.lose(request)
                continue
            if why is NotComputed.DROPPED:
                self._sequences.stats.num_dropped_parts += 1
                self._kv.take_back(request)
                continue
            num_computed = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens
            if request.num_lost_tokens > scheduled.num_computed_tokens:
                self._sequences.stats.recomputed(request, scheduled)
            request.num_computed_tokens = max(request.num_computed_tokens, num_computed)
            splits = scheduled.samples and request.pending_children
            children = self._sequences.fork(request) if splits else []
            for sequence in (request, *children):
                found = result.results.get(sequence.request_id)
                assert found or not scheduled.samples, f"{sequence.request_id}: no result"
                if found is None:
                    continue
                if found.prompt_logprobs is not None:
                    found.prompt_logprobs = sequence.unreported(found.prompt_logprobs)
                if found.error is not None:
                    outputs += self._fail(sequence, found)
                elif found.token_ids:
                    slots = lookahead if scheduled.num_lookahead_tokens else None
                    outputs.append(self._append_tokens(sequence, found, now, slots))
                elif found.embedding is not None:
                    self._sequences.finish(sequence, "stop")
                    outputs.append(EngineOutput.of(sequence, found, "stop"))
                elif found.prompt_logprobs is not None:
                    outputs.append(EngineOutput.of(sequence, found))
        if result.lost_block_ids:
            for block_id in result.lost_block_ids:
                self._kv.pool.forget(block_id)
            self._sequences.kept.lost(result.lost_block_ids)
        if result.not_computed or any(output.finish_reason for output in outputs):
            self._sequences.drop_ended()
        return outputs

    def _append_tokens(
        self, request: Request, result: SequenceResult, now: float, slots: Lookahead | None
    ) -> EngineOutput:
        """Append the next tokens up to the sequence's last, and end it there."""
        stop = None
        for count, token_id in enumerate(result.token_ids, start=1):
            request.token_ids.append(token_id)
            stop = check_stop(request, self._eos_token_ids)
            if stop is not None:
                if count < len(result.token_ids):
                    result = result.part(0, count)
                break
        request.num_computed_tokens += result.num_accepted
        if slots is not None:
            slots.settle(request, result)
        self._sequences.stats.tokens_appended(request, result, now)
        self._sequences.waiting.charge(
            request.source.client, OUTPUT_TOKEN_COST * len(result.token_ids)
        )
        if stop is not None:
            self._sequences.finish(request, stop[0])
            return EngineOutput.of(request, result, *stop)
        if not self._use_cache:
            request.num_computed_tokens = 0
        return EngineOutput.of(request, result)

    def _fail(self, request: Request, result: SequenceResult) -> list[EngineOutput]:
        """End a running sequence, and those that were to split off from it, with an error."""
        group = [request, *request.pending_children]
        self._kv.free(request, forget=True)
        for sequence in group:
            self._sequences.finish(sequence, "error")
        failure = SequenceResult(error=result.error)
        return [EngineOutput.of(sequence, failure, "error") for sequence in group]
