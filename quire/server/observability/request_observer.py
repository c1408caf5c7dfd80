"""One request's outputs as histograms: its times and sizes; the engine counts the rest."""

from __future__ import annotations

from quire.core.outputs import RequestOutput
from quire.server.observability.metrics import ServerMetrics
from quire.server.observability.request_record import Generation


class RequestObserver:
    """Follows one request from its first output to its last.

    Args:
        metrics: Written to.
        generation: Gets each output.
    """

    def __init__(self, metrics: ServerMetrics, generation: Generation) -> None:
        self._metrics = metrics
        self._generation = generation
        self._num_tokens = [0] * generation.params.n
        self._last_time = 0.0

    def observe(self, output: RequestOutput) -> None:
        """Record the tokens that are new in ``output``, and everything else at its end.

        Times are the engine's: an output may carry several tokens when it was fetched late.
        """
        metrics, times = self._metrics, output.metrics
        self._generation.output = output
        if not self._last_time and times.first_token_time:
            self._last_time = times.first_token_time
            metrics.time_to_first_token.observe(times.first_token_time - times.arrival_time)
            metrics.computed.add(len(output.prompt_token_ids) - output.num_cached_tokens)
        num_new = 0
        for completion in output.outputs:
            before, count = self._num_tokens[completion.index], len(completion.token_ids)
            gaps = count - max(before, 1)
            if gaps > 0:
                gap = (times.last_token_time - self._last_time) / gaps
                metrics.inter_token_latency.observe(gap, gaps)
            num_new += count - before
            self._num_tokens[completion.index] = count
        metrics.generated.add(num_new)
        self._last_time = max(self._last_time, times.last_token_time)
        if output.finished:
            self._observe_end(output)

    def _observe_end(self, output: RequestOutput) -> None:
        metrics, times, params = self._metrics, output.metrics, self._generation.params
        num_prompt = len(output.prompt_token_ids)
        longest = max(self._num_tokens)
        metrics.params_n.observe(params.n)
        if params.max_tokens is not None:
            metrics.params_max_tokens.observe(params.max_tokens)
        metrics.prompt_tokens.observe(num_prompt)
        metrics.num_preemptions.observe(times.num_preemptions)
        metrics.max_generation_tokens.observe(longest)
        for completion in output.outputs:
            metrics.generation_tokens.observe(len(completion.token_ids))
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
