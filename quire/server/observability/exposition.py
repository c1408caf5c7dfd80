"""Samples as Prometheus' metric families, HELP and TYPE from the catalogue; it counts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from quire.core.metrics import METRICS, Samples, stem_of

_LABEL = re.compile(r'(\w+)="([^"]*)"')
_FAMILIES = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


CONTENT_TYPE = CONTENT_TYPE_LATEST


class _SamplesCollector(Collector):
    """Yields the same samples at each scrape."""

    def __init__(self, samples: Samples, prefix: str, labels: Mapping[str, str]) -> None:
        self._families = list(families(samples, prefix, labels, {}))

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def exposition(samples: Samples, prefix: str, model_name: str) -> bytes:
    """Return the text of a scrape that shows ``samples`` alone."""
    registry = CollectorRegistry()
    labels = {"model_name": model_name, "engine": "0"}
    registry.register(_SamplesCollector(samples, prefix.rstrip(":") + ":", labels))
    return generate_latest(registry)


def families(
    samples: Samples,
    prefix: str,
    labels: Mapping[str, str],
    bounds: Mapping[str, tuple[float, ...]],
) -> Iterator[Metric]:
    """Yield one metric family per stem.

    Args:
        samples: Samples with labels, by stem.
        prefix: First part of each name.
        labels: Labels that are added to each series without one of the same name.
        bounds: Upper bounds of the histograms that have none in the catalogue.
    """
    found: dict[str, Metric] = {}
    for name, value in samples.items():
        stem = stem_of(name)
        metric = METRICS[stem]
        own = dict(_LABEL.findall(name))
        if stem not in found:
            kind = _FAMILIES[metric.kind]
            found[stem] = kind(prefix + stem, metric.help, labels=tuple({**labels, **own}))
        family, values = found[stem], tuple({**labels, **own}.values())
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, list), name
            buckets = list(cumulative(metric.buckets or bounds[stem], value[1:]))
            family.add_metric(values, buckets, value[0])
        else:
            assert isinstance(family, GaugeMetricFamily | CounterMetricFamily), name
            assert not isinstance(value, list), name
            family.add_metric(values, value)
    yield from found.values()


def cumulative(bounds: tuple[float, ...], counts: list[float]) -> Iterator[tuple[str, float]]:
    """Yield ``(upper bound, values up to it)``, as the text format has it."""
    total = 0.0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        yield ("+Inf" if bound == float("inf") else str(float(bound))), total
