"""One request's outputs as histograms: its times and sizes; the engine counts the rest."""

from __future__ import annotations

from quire.core.outputs import RequestOutput
from quire.server.observability.metrics_endpoint import ModelMetrics
from quire.server.observability.request_record import Generation


class RequestObserver:
    """Follows one request from its first output to its last.

    Args:
        metrics: The metrics that are written to.
        generation: The record that counts its tokens.
    """

    def __init__(self, metrics: ModelMetrics, generation: Generation) -> None:
        self._metrics = metrics
        self._generation = generation
        self._last_time = 0.0

    def observe(self, output: RequestOutput) -> None:
        """Record the tokens of a delta, and everything else at the end.

        Times are the engine's: a delta may carry several tokens when it was fetched late.
        """
        metrics, times, num_new = self._metrics, output.metrics, 0
        if not self._last_time and times.first_token_time:
            self._last_time = times.first_token_time
            metrics.time_to_first_token.observe(times.first_token_time - times.arrival_time)
            metrics.computed.add(len(output.prompt_token_ids) - output.num_cached_tokens)
        for completion in output.outputs:
            # The first token has no gap before it.
            num_new += len(completion.token_ids)
            is_first = not self._generation.num_tokens[completion.index]
            gaps = len(completion.token_ids) - is_first
            if gaps > 0:
                gap = (times.last_token_time - self._last_time) / gaps
                metrics.inter_token_latency.observe(gap, gaps)
        self._generation.add(output)
        metrics.generated.add(num_new)
        self._last_time = max(self._last_time, times.last_token_time)
        if output.finished:
            self._observe_end(output)

    def _observe_end(self, output: RequestOutput) -> None:
        metrics, times, params = self._metrics, output.metrics, self._generation.params
        num_prompt = len(output.prompt_token_ids)
        longest = max(self._generation.num_tokens)
        metrics.params_n.observe(params.n)
        if params.max_tokens is not None:
            metrics.params_max_tokens.observe(params.max_tokens)
        metrics.prompt_tokens.observe(num_prompt)
        metrics.num_preemptions.observe(times.num_preemptions)
        metrics.max_generation_tokens.observe(longest)
        for num_tokens in self._generation.num_tokens:
            metrics.generation_tokens.observe(num_tokens)
        if not times.first_token_time:
            return
        decode = times.last_token_time - times.first_token_time
        metrics.computed_tokens.observe(num_prompt - output.num_cached_tokens)
        metrics.e2e_latency.observe(times.last_token_time - times.arrival_time)
        metrics.queue_time.observe(times.first_scheduled_time - times.arrival_time)
        metrics.prefill_time.observe(times.first_token_time - times.first_scheduled_time)
        metrics.decode_time.observe(decode)
        metrics.inference_time.observe(times.last_token_time - times.first_scheduled_time)
        if longest > 1:
            metrics.time_per_output_token.observe(decode / (longest - 1))
