"""One request's outputs as histograms: its times and sizes; the engine counts the rest."""

from __future__ import annotations

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.metrics import ServerMetrics


class RequestObserver:
    """Follows one request from its first output to its last."""

    def __init__(self, metrics: ServerMetrics, params: SamplingParams) -> None:
        self._metrics = metrics
        self._params = params
        self._num_tokens = [0] * params.n
        self._last_time = 0.0

    def observe(self, output: RequestOutput) -> None:
        """Record the tokens that are new in ``output``, and everything else at its end.

        Times are the engine's: an output may carry several tokens when it was fetched late.
        """
        times = output.metrics
        if not self._last_time and times.first_token_time:
            self._last_time = times.first_token_time
            wait = times.first_token_time - times.arrival_time
            self._metrics.time_to_first_token.observe(wait)
        for completion in output.outputs:
            before, count = self._num_tokens[completion.index], len(completion.token_ids)
            gaps = count - max(before, 1)
            for _ in range(gaps):
                gap = (times.last_token_time - self._last_time) / gaps
                self._metrics.inter_token_latency.observe(gap)
            self._num_tokens[completion.index] = count
        self._last_time = max(self._last_time, times.last_token_time)
        if output.finished:
            self._observe_end(output)

    def _observe_end(self, output: RequestOutput) -> None:
        metrics, times = self._metrics, output.metrics
        metrics.params_n.observe(self._params.n)
        if self._params.max_tokens is not None:
            metrics.params_max_tokens.observe(self._params.max_tokens)
        metrics.prompt_tokens.observe(len(output.prompt_token_ids))
        for completion in output.outputs:
            metrics.generation_tokens.observe(len(completion.token_ids))
        if not times.first_token_time:
            return
        decode = times.last_token_time - times.first_token_time
        metrics.e2e_latency.observe(times.last_token_time - times.arrival_time)
        metrics.queue_time.observe(times.first_scheduled_time - times.arrival_time)
        metrics.prefill_time.observe(times.first_token_time - times.first_scheduled_time)
        metrics.decode_time.observe(decode)
        metrics.inference_time.observe(times.last_token_time - times.first_scheduled_time)
        longest = max(self._num_tokens)
        if longest > 1:
            metrics.time_per_output_token.observe(decode / (longest - 1))
