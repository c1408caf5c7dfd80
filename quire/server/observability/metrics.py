"""``GET /metrics``: what requests, engine, processes and HTTP come to, gathered at a scrape."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from quire.core.config import EngineConfig
from quire.core.heap import HeapTrimmer
from quire.core.metrics import METRICS, Histogram, Samples
from quire.core.process_usage import HostLoad, process_samples
from quire.llm.engine_client import EngineClient
from quire.server.observability.exposition import families
from quire.server.observability.http_metrics import HttpMetrics

#: Throughput is an average over this window.
WINDOW_SECONDS = 10


class Throughput:
    """Things a second, averaged over the last :data:`WINDOW_SECONDS`.

    Args:
        clock: Returns seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_second: Counter[int] = Counter()

    def add(self, count: int) -> None:
        """Count things that happened now."""
        second = int(self._clock())
        if second not in self._per_second:
            self._drop_old(second)
        self._per_second[second] += count

    def value(self) -> float:
        """Return the average."""
        self._drop_old(int(self._clock()))
        return sum(self._per_second.values()) / WINDOW_SECONDS

    def _drop_old(self, now: int) -> None:
        for second in [s for s in self._per_second if s <= now - WINDOW_SECONDS]:
            del self._per_second[second]


class ModelMetrics:
    """What the requests of one model write to.

    Args:
        engine: Asked for its counters at each scrape, so that its steps never wait for one.
        config: Shown as labels of ``cache_config_info``.
        model_name: Value of the label ``model_name``.

    Attributes:
        num_in_flight: Generation requests being answered.
        generated, computed: Output tokens; prompt tokens that were computed.
        labels: Of each of its series.
    """

    def __init__(self, engine: EngineClient, config: EngineConfig, model_name: str) -> None:
        self._engine = engine
        self._histograms: dict[str, Histogram] = {}
        self._by_length = _one_two_five(engine.max_model_len)
        self.num_in_flight = 0
        self.generated, self.computed = Throughput(), Throughput()
        self.time_to_first_token = self._histogram("time_to_first_token_seconds")
        self.inter_token_latency = self._histogram("inter_token_latency_seconds")
        self._histograms["time_per_output_token_seconds"] = self.inter_token_latency
        self.time_per_output_token = self._histogram("request_time_per_output_token_seconds")
        self.e2e_latency = self._histogram("e2e_request_latency_seconds")
        self.queue_time = self._histogram("request_queue_time_seconds")
        self.inference_time = self._histogram("request_inference_time_seconds")
        self.prefill_time = self._histogram("request_prefill_time_seconds")
        self.decode_time = self._histogram("request_decode_time_seconds")
        self.prompt_tokens = self._histogram("request_prompt_tokens")
        self.computed_tokens = self._histogram("request_prefill_kv_computed_tokens")
        self.generation_tokens = self._histogram("request_generation_tokens")
        self.max_generation_tokens = self._histogram("request_max_num_generation_tokens")
        self.params_max_tokens = self._histogram("request_params_max_tokens")
        self.params_n = self._histogram("request_params_n")
        self.num_preemptions = self._histogram("request_num_preemptions")
        self.labels = {"model_name": model_name, "engine": "0"}
        self._cache_config = {
            field.name: str(getattr(config.cache, field.name)) for field in fields(config.cache)
        }

    def samples(self) -> Samples:
        """Return what is known of the model, by metric stem."""
        own: Samples = {
            "server_load": self.num_in_flight,
            "avg_prompt_throughput_toks_per_s": self.computed.value(),
            "avg_generation_throughput_toks_per_s": self.generated.value(),
            "model_load_progress_perc": 1.0,
        }
        for stem, histogram in self._histograms.items():
            own[stem] = histogram.state()
        return self._engine.stats() | own

    def families(self, prefix: str) -> Iterator[Metric]:
        """Yield the model's families."""
        bounds = {
            stem: self._by_length
            for stem, metric in METRICS.items()
            if metric.kind == "histogram" and not metric.buckets
        }
        yield from families(self.samples(), prefix, self.labels, bounds)
        labels = self.labels | self._cache_config
        stem = "cache_config_info"
        info = GaugeMetricFamily(prefix + stem, METRICS[stem].help, labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info

    def _histogram(self, stem: str) -> Histogram:
        histogram = self._histograms[stem] = Histogram(METRICS[stem].buckets or self._by_length)
        return histogram


class ServerMetrics(Collector):
    """What scrapes read: of this process, of HTTP, and of each model.

    Args:
        prefix: First part of the names.
        rejections: Requests refused at the door, by reason.

    Attributes:
        http: Of all routes.
        models: Those that are loaded; what is of the process is under the first one's name.
        num_unread: Connections cut because their client read nothing.
    """

    def __init__(self, prefix: str, rejections: Counter[str]) -> None:
        self._prefix = prefix.rstrip(":") + ":"
        self._rejections = rejections
        self._host_load = HostLoad()
        self._heap = HeapTrimmer("server")
        self.http = HttpMetrics()
        self.models: list[ModelMetrics] = []
        self.num_unread = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(self.http)

    @property
    def num_in_flight(self) -> int:
        """Generation requests being answered."""
        return sum(model.num_in_flight for model in self.models)

    def exposition(self) -> tuple[bytes, str]:
        """Return the text of a scrape and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def samples(self) -> Samples:
        """Return what is known of the process, by metric stem."""
        own: Samples = {
            "host_cpu_usage_perc": self._host_load.value(),
            "unread_answer_disconnects": self.num_unread,
        }
        for reason, count in self._rejections.items():
            own[f'admission_rejections{{reason="{reason}"}}'] = count
        return process_samples("server") | self._heap.samples() | own

    def collect(self) -> Iterator[Metric]:
        """Yield a family per stem, with the series of all models."""
        found: dict[str, Metric] = {}
        labels = self.models[0].labels if self.models else {"model_name": "", "engine": "0"}
        own = families(self.samples(), self._prefix, labels, {})
        for family in itertools.chain(own, *(m.families(self._prefix) for m in self.models)):
            if family.name in found:
                found[family.name].samples += family.samples
            else:
                found[family.name] = family
        yield from found.values()

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: a scrape only for its names would cost as much as one for its values."""
        return iter(())

    def close(self) -> None:
        """Look after this process's memory no longer."""
        self._heap.close()


def _one_two_five(limit: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to ``limit``."""
    values = []
    scale = 1
    while scale <= limit:
        values += [factor * scale for factor in (1, 2, 5) if factor * scale <= limit]
        scale *= 10
    return tuple(values)
