"""``GET /metrics``: the engine's gauges and counters, and histograms of finished requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from quire.core.config import EngineConfig
from quire.llm.engine_client import EngineClient
from quire.server.options import ServerOptions

#: Stems of ``EngineClient.stats()`` that go up and down; all others only grow.
GAUGES = frozenset({"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"})
_STEM = re.compile(r'(\w+)(?:\{(\w+)="(\w+)"\})?')

# vLLM's buckets, with finer ones below their floor: small models answer faster than that.
TTFT_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5,
    7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
ITL_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1,
    2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20,
    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
N_BUCKETS = (1, 2, 5, 10, 20)
LABELS = ("model_name", "engine")


class ServerMetrics:
    """The registry of one server and the series that requests write to.

    Args:
        engine: Asked for its counters at each scrape.
        config: Shown as labels of ``cache_config_info``.
        options: Names the prefix.
        model_name: Value of the label ``model_name``.
    """

    def __init__(
        self, engine: EngineClient, config: EngineConfig, options: ServerOptions, model_name: str
    ) -> None:
        self._registry = CollectorRegistry()
        self._prefix = options.metrics_prefix.rstrip(":") + ":"
        self._labels = (model_name, "0")
        self._registry.register(_EngineCollector(engine, config, self._prefix, self._labels))
        tokens = _one_two_five(engine.max_model_len)
        self.time_to_first_token = self._histogram("time_to_first_token_seconds", TTFT_BUCKETS)
        self.inter_token_latency = self._histogram("inter_token_latency_seconds", ITL_BUCKETS)
        self.time_per_output_token = self._histogram(
            "request_time_per_output_token_seconds", ITL_BUCKETS
        )
        self.e2e_latency = self._histogram("e2e_request_latency_seconds", LATENCY_BUCKETS)
        self.queue_time = self._histogram("request_queue_time_seconds", LATENCY_BUCKETS)
        self.inference_time = self._histogram("request_inference_time_seconds", LATENCY_BUCKETS)
        self.prefill_time = self._histogram("request_prefill_time_seconds", LATENCY_BUCKETS)
        self.decode_time = self._histogram("request_decode_time_seconds", LATENCY_BUCKETS)
        self.prompt_tokens = self._histogram("request_prompt_tokens", tokens)
        self.generation_tokens = self._histogram("request_generation_tokens", tokens)
        self.params_max_tokens = self._histogram("request_params_max_tokens", tokens)
        self.params_n = self._histogram("request_params_n", N_BUCKETS)

    def exposition(self) -> tuple[bytes, str]:
        """Return the text of a scrape and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _histogram(self, stem: str, buckets: tuple[float, ...]) -> Histogram:
        name = self._prefix + stem
        histogram = Histogram(
            name, stem.replace("_", " "), LABELS, buckets=buckets, registry=self._registry
        )
        return histogram.labels(*self._labels)


class _EngineCollector(Collector):
    """Reads the engine's own numbers at scrape time, so the step loop never waits for a scrape."""

    def __init__(
        self, engine: EngineClient, config: EngineConfig, prefix: str, labels: tuple[str, str]
    ) -> None:
        self._engine, self._prefix, self._labels = engine, prefix, labels
        self._cache_config = {
            field.name: str(getattr(config.cache, field.name)) for field in fields(config.cache)
        }

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for key, value in self._engine.stats().items():
            match = _STEM.fullmatch(key)
            assert match is not None, key
            stem, label, label_value = match.groups()
            kind = GaugeMetricFamily if stem in GAUGES else CounterMetricFamily
            labels = LABELS if label is None else (*LABELS, label)
            if stem not in families:
                families[stem] = kind(self._prefix + stem, stem.replace("_", " "), labels=labels)
            values = self._labels if label is None else (*self._labels, label_value)
            families[stem].add_metric(values, value)
        yield from families.values()
        info = GaugeMetricFamily(
            self._prefix + "cache_config_info",
            "The KV cache's settings.",
            labels=(*LABELS, *self._cache_config),
        )
        info.add_metric((*self._labels, *self._cache_config.values()), 1)
        yield info


def _one_two_five(limit: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to ``limit``."""
    values = []
    scale = 1
    while scale <= limit:
        values += [factor * scale for factor in (1, 2, 5) if factor * scale <= limit]
        scale *= 10
    return tuple(values)
