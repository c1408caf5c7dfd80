"""HTTP requests by route, under the names of prometheus-fastapi-instrumentator."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from quire.core.metrics import HistogramCounts
from quire.server.observability.exposition import cumulative
from quire.server.observability.request_record import RequestRecord

#: Finer below 0.1 s than the instrumentator's three.
DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: What probes and scrapers ask all the time.
EXCLUDED = frozenset(
    {
        "/metrics", "/health", "/health/live", "/health/ready", "/health/progress", "/load",
        "/ping", "/version",
    }
)  # fmt: skip


class HttpMetrics(Collector):
    """Counts requests when they end."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._durations: defaultdict[tuple[str, str], HistogramCounts] = defaultdict(
            lambda: HistogramCounts(DURATION_BUCKETS)
        )
        self._sizes: dict[str, defaultdict[str, list[int]]] = {
            name: defaultdict(lambda: [0, 0]) for name in ("request", "response")
        }

    def add(self, record: RequestRecord) -> None:
        """Count one request."""
        handler = record.handler
        if handler in EXCLUDED:
            return
        self._requests[record.method, f"{record.status // 100}xx", handler] += 1
        self._durations[record.method, handler].observe(record.seconds)
        for name, size in (("request", record.num_bytes_in), ("response", record.num_bytes_out)):
            count_and_sum = self._sizes[name][handler]
            count_and_sum[0] += 1
            count_and_sum[1] += size

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        requests = CounterMetricFamily(
            "http_requests",
            "Requests by method, status and route.",
            labels=("method", "status", "handler"),
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        durations = HistogramMetricFamily(
            "http_request_duration_seconds",
            "Request received to last byte sent, in seconds.",
            labels=("method", "handler"),
        )
        for key, histogram in self._durations.items():
            buckets = list(cumulative(histogram.bounds, list(histogram.counts)))
            durations.add_metric(key, buckets, histogram.total)
        yield durations
        for name, by_handler in self._sizes.items():
            sizes = SummaryMetricFamily(
                f"http_{name}_size_bytes", f"Bytes of a {name}'s body.", labels=("handler",)
            )
            for handler, (count, total) in by_handler.items():
                sizes.add_metric((handler,), count, total)
            yield sizes

    def describe(self) -> Iterator[Metric]:
        """Yield nothing; see :class:`quire.server.observability.metrics_endpoint.ServerMetrics`."""
        return iter(())
