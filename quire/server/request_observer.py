"""One request's outputs as histograms: its times and sizes; the engine counts the rest."""

from __future__ import annotations

import time

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.metrics import ServerMetrics


class RequestObserver:
    """Follows one request from its first output to its last."""

    def __init__(self, metrics: ServerMetrics, params: SamplingParams) -> None:
        self._metrics = metrics
        self._params = params
        self._num_tokens = [0] * params.n
        self._last_time = [0.0] * params.n

    def observe(self, output: RequestOutput) -> None:
        """Record the tokens that are new in ``output``, and everything else at its end."""
        now = time.monotonic()
        for completion in output.outputs:
            index = completion.index
            before, count = self._num_tokens[index], len(completion.token_ids)
            if count > before:
                if before:
                    gap = (now - self._last_time[index]) / (count - before)
                    for _ in range(count - before):
                        self._metrics.inter_token_latency.observe(gap)
                elif not any(self._num_tokens):
                    self._metrics.time_to_first_token.observe(now - output.metrics.arrival_time)
                self._num_tokens[index], self._last_time[index] = count, now
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
