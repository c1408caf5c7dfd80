"""Metrics as objects, in the shapes of vLLM's ``LLM.get_metrics``; nothing is counted here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from quire.core.metrics import METRICS, Samples, stem_of

_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Metric:
    """One series.

    Attributes:
        name: The metric's name with the prefix ``quire:``.
        labels: Values of the labels, by name.
    """

    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A number that only grows."""

    value: float


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A number of now."""

    value: float


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """Values by size.

    Attributes:
        count: Number of values.
        sum: Sum of the values.
        buckets: Number of values up to each bound; the last bound is ``+Inf``.
    """

    count: int
    sum: float
    buckets: dict[str, int]


def readings(samples: Samples) -> Iterator[Metric]:
    """Yield a reading for each sample.

    Args:
        samples: Values by stem, with labels; histograms have the bounds of the catalogue.
    """
    for name, value in samples.items():
        metric = METRICS[stem_of(name)]
        labels = dict(_LABEL.findall(name))
        full = f"quire:{stem_of(name)}"
        if isinstance(value, list):
            counts = list(accumulate(int(count) for count in value[1:]))
            buckets = dict(zip([*map(str, metric.buckets), "+Inf"], counts, strict=True))
            yield Histogram(full, labels, counts[-1], value[0], buckets)
        elif metric.kind == "counter":
            yield Counter(full, labels, value)
        else:
            yield Gauge(full, labels, value)
