"""``GET /metrics``: numbers of requests, engine, processes and HTTP, gathered at a scrape."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from quire.core.metrics import METRICS, HistogramCounts, Samples, add_counters, add_up, stem_of
from quire.llm.engine_client import EngineClient
from quire.server.observability.exposition import families
from quire.server.observability.http_metrics import HttpMetrics
from quire.settings.config import EngineConfig
from quire.system.heap import HeapTrimmer
from quire.system.process_usage import HostLoad, process_samples

#: Throughput is an average over this window.
WINDOW_SECONDS = 10
#: Of vLLM's engines; one that serves here is awake.
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
#: The counters of as many models that are unloaded are kept, those unloaded last.
MAX_UNLOADED = 64


class Throughput:
    """A rate per second, averaged over the last :data:`WINDOW_SECONDS`.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_second: Counter[int] = Counter()

    def add(self, count: int) -> None:
        """Count ``count`` events that happened now."""
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


@dataclass(frozen=True, slots=True)
class ModelSamples:
    """The metrics of one model at one time.

    Attributes:
        samples: Samples by metric stem.
        by_length: Upper bounds of the histograms that have none in the catalogue.
    """

    samples: Samples
    by_length: tuple[float, ...]

    def after(self, earlier: ModelSamples) -> ModelSamples:
        """Return these plus the counters and histograms of ``earlier``, and its other gauges."""
        by_length = max(self.by_length, earlier.by_length, key=len)
        before = earlier._with_bounds(by_length)
        joined = before | add_counters(before, self._with_bounds(by_length))
        return ModelSamples(joined, by_length)

    def counted(self) -> ModelSamples:
        """Return the counters and histograms alone."""
        kinds = {name: METRICS[stem_of(name)].kind for name in self.samples}
        counted = {name: v for name, v in self.samples.items() if kinds[name] != "gauge"}
        return ModelSamples(counted, self.by_length)

    def families(self, prefix: str, labels: dict[str, str]) -> Iterator[Metric]:
        """Yield the families."""
        lengths = (stem for stem, m in METRICS.items() if m.kind == "histogram" and not m.buckets)
        yield from families(self.samples, prefix, labels, dict.fromkeys(lengths, self.by_length))

    def _with_bounds(self, by_length: tuple[float, ...]) -> Samples:
        """Return the samples as they are for a longer context; no length was above its own."""
        more = [0.0] * (len(by_length) - len(self.by_length))
        return {
            name: [*value, *more]
            if isinstance(value, list) and not METRICS[stem_of(name)].buckets
            else value
            for name, value in self.samples.items()
        }


class ModelMetrics:
    """The metrics that the requests of one model write to.

    Args:
        engine: The engine, asked for its counters at each scrape, so that its steps never wait.
        config: The engine's settings, shown as labels of ``cache_config_info``.
        model_name: Value of the label ``model_name``.

    Attributes:
        num_in_flight: Generation requests being answered.
        generated, computed: Output tokens; prompt tokens that were computed.
        labels: Labels of each of its series.
    """

    def __init__(self, engine: EngineClient, config: EngineConfig, model_name: str) -> None:
        self._engine = engine
        self._histograms: dict[str, HistogramCounts] = {}
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
        self.labels = _labels(model_name)
        self._cache_config = {
            field.name: str(getattr(config.cache, field.name)) for field in fields(config.cache)
        }

    @property
    def model_name(self) -> str:
        """The name in the labels."""
        return self.labels["model_name"]

    def samples(self) -> ModelSamples:
        """Return the model's metrics since it was loaded."""
        own: Samples = {
            "server_load": self.num_in_flight,
            "avg_prompt_throughput_toks_per_s": self.computed.value(),
            "avg_generation_throughput_toks_per_s": self.generated.value(),
            "model_load_progress_perc": 1.0,
        }
        for state in _SLEEP_STATES:
            own[f'engine_sleep_state{{sleep_state="{state}"}}'] = float(state == "awake")
        for stem, histogram in self._histograms.items():
            own[stem] = histogram.state()
        return ModelSamples(self._engine.stats() | own, self._by_length)

    def cache_config(self, prefix: str) -> Metric:
        """Return the family that shows the KV cache's settings."""
        num_blocks = str(int(add_up(self._engine.stats(), "num_kv_blocks")))
        labels = self.labels | self._cache_config | {"num_gpu_blocks": num_blocks}
        stem = "cache_config_info"
        info = GaugeMetricFamily(prefix + stem, METRICS[stem].help, labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        return info

    def _histogram(self, stem: str) -> HistogramCounts:
        histogram = self._histograms[stem] = HistogramCounts(
            METRICS[stem].buckets or self._by_length
        )
        return histogram


class ServerMetrics(Collector):
    """The metrics that scrapes read: of this process, of HTTP, and of each model.

    A model that is unloaded keeps its counters and histograms, which continue when it is loaded
    again; its gauges are absent meanwhile.

    Args:
        prefix: First part of the names.
        rejections: Counts of requests that were refused on arrival, by reason.

    Attributes:
        http: The metrics of all routes.
        model_name: Label of the metrics of the process: the name of the first model.
        num_unread: Connections cut because their client read nothing.
    """

    def __init__(self, prefix: str, rejections: Counter[str]) -> None:
        self._prefix = prefix.rstrip(":") + ":"
        self._rejections = rejections
        self._host_load = HostLoad()
        self._heap = HeapTrimmer("server")
        self.http = HttpMetrics()
        self.model_name = ""
        self._models: list[ModelMetrics] = []
        self._unloaded: dict[str, ModelSamples] = {}  # by name, the one unloaded last at the end
        self.num_unread = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(self.http)
        ProcessCollector(registry=self._registry)

    @property
    def num_in_flight(self) -> int:
        """Generation requests being answered."""
        return sum(model.num_in_flight for model in self._models)

    def add(self, model: ModelMetrics) -> None:
        """Show a model that was loaded."""
        self._models.append(model)

    def remove(self, model: ModelMetrics) -> None:
        """Keep the counts of a model that is unloaded, alone; a second call does nothing."""
        if model in self._models:
            self._models.remove(model)
            counted = self._since_start(model).counted()
            self._unloaded.pop(model.model_name, None)
            self._unloaded[model.model_name] = counted
            if len(self._unloaded) > MAX_UNLOADED:
                del self._unloaded[next(iter(self._unloaded))]

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
        own = families(self.samples(), self._prefix, _labels(self.model_name), {})
        for family in itertools.chain(own, self._model_families()):
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

    def _since_start(self, model: ModelMetrics) -> ModelSamples:
        """Return what is known of a model that is loaded, what it counted before included."""
        earlier, samples = self._unloaded.get(model.model_name), model.samples()
        return samples if earlier is None else samples.after(earlier)

    def _model_families(self) -> Iterator[Metric]:
        """Yield the families of each name; one that was changed may have two models for a while."""
        found = dict(self._unloaded)
        newest: dict[str, ModelMetrics] = {}
        for model in self._models:
            name, samples = model.model_name, model.samples()
            found[name] = samples.after(found[name]) if name in found else samples
            newest[name] = model
        for name, samples in found.items():
            yield from samples.families(self._prefix, _labels(name))
        for model in newest.values():
            yield model.cache_config(self._prefix)


def _labels(model_name: str) -> dict[str, str]:
    return {"model_name": model_name, "engine": "0"}


def _one_two_five(limit: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to ``limit``."""
    values = []
    scale = 1
    while scale <= limit:
        values += [factor * scale for factor in (1, 2, 5) if factor * scale <= limit]
        scale *= 10
    return tuple(values)
