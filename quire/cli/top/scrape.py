"""A scrape of ``/metrics`` as numbers, and its differences from an earlier scrape."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from quire.core.errors import QuireError

#: Each model that is loaded or loading has it.
_OF_MODEL = "model_load_progress_perc"
#: A server has one of them at any time; what comes before it is the prefix of all names.
_MARKS = (_OF_MODEL, "unread_answer_disconnects")

#: Labels apart from ``model_name`` and ``engine``, sorted.
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the exposition: stem, model and further labels."""

    stem: str
    model: str
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's counts.

    Attributes:
        bounds: Upper bounds, inclusive, ascending; the last is infinity.
        counts: Values in each bucket, those of lower buckets not included.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def total(self) -> float:
        """Values in all buckets."""
        return sum(self.counts)

    def __add__(self, other: Buckets) -> Buckets:
        """Return both together; where the bounds differ, the larger one."""
        if self.bounds != other.bounds:
            return max(self, other, key=lambda buckets: buckets.total)
        sums = (a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Buckets(self.bounds, tuple(sums))

    def since(self, earlier: Buckets | None) -> Buckets:
        """Return what came after ``earlier``; all of it when the counter began again meanwhile."""
        if earlier is None or earlier.bounds != self.bounds:
            return self
        added = [a - b for a, b in zip(self.counts, earlier.counts, strict=True)]
        return self if min(added, default=0) < 0 else Buckets(self.bounds, tuple(added))

    def quantile(self, part: float) -> float | None:
        """Return the value that ``part`` of all values do not exceed; None without values.

        Within its bucket values are taken to lie evenly, as in Prometheus' ``histogram_quantile``;
        the last bucket has no upper bound and gives its lower one.

        Args:
            part: 0 to 1.
        """
        rank, below, low = part * self.total, 0.0, 0.0
        if not self.total:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count and below + count >= rank:
                if bound == float("inf"):
                    return low
                return low + (bound - low) * max(rank - below, 0.0) / count
            below, low = below + count, bound
        return low


@dataclass(frozen=True, slots=True)
class Scrape:
    """Metrics that a server exported at one time.

    Attributes:
        values: Gauges and counters.
        histograms: Histograms by stem and model.
    """

    values: dict[Series, float] = field(default_factory=dict)
    histograms: dict[tuple[str, str], Buckets] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that have figures of their own, in the exposition's order."""
        return tuple(dict.fromkeys(s.model for s in self.values if s.stem == _OF_MODEL))

    def series(self, stem: str, model: str | None = None, **labels: str) -> Iterator[Series]:
        """Yield the series of a stem; of one model, and with these labels, where they are given."""
        for series in self.values:
            if series.stem == stem and model in (None, series.model):
                own = dict(series.labels)
                if all(own.get(name) == value for name, value in labels.items()):
                    yield series

    def value(self, stem: str, model: str | None = None, **labels: str) -> float | None:
        """Return the sum over :meth:`series`; None when there are none."""
        found = [self.values[series] for series in self.series(stem, model, **labels)]
        return sum(found) if found else None

    def increase(
        self, earlier: Scrape, stem: str, model: str | None = None, **labels: str
    ) -> float | None:
        """Return by how much counters have grown since ``earlier``, summed; None without any.

        A counter that has become less began again at zero, and one that is new began there.
        """
        found = [
            now - before if now >= before else now
            for series in self.series(stem, model, **labels)
            for now, before in [(self.values[series], earlier.values.get(series, 0.0))]
        ]
        return sum(found) if found else None

    def observed(self, earlier: Scrape, stem: str, model: str | None = None) -> Buckets | None:
        """Return the values of histograms since ``earlier``; None when there is no histogram."""
        found = None
        for (own, name), buckets in self.histograms.items():
            if own == stem and model in (None, name):
                added = buckets.since(earlier.histograms.get((own, name)))
                found = added if found is None else found + added
        return found


def read_scrape(text: str) -> Scrape:
    """Return the figures of an exposition, whatever the prefix of its names.

    Raises:
        QuireError: The text is not in Prometheus' format, or not a Quire server's.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError) as error:
        raise QuireError(f"[top] /metrics must be Prometheus' text format; got {error}.") from error
    marked = (f.name.removesuffix(m) for f in families for m in _MARKS if f.name.endswith(m))
    prefix = next(marked, None)
    if prefix is None:
        raise QuireError(f"[top] /metrics must be a Quire server's; got none named {_OF_MODEL}.")
    values: defaultdict[Series, float] = defaultdict(float)
    cumulative: defaultdict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for family in families:
        if not family.name.startswith(prefix):
            continue
        stem = family.name.removeprefix(prefix)
        for sample in family.samples:
            labels = dict(sample.labels)
            model = labels.pop("model_name", "")
            labels.pop("engine", None)
            series = Series(stem, model, tuple(sorted(labels.items())))
            if family.type == "histogram":
                if sample.name.endswith("_bucket"):
                    found, bound = cumulative[stem, model], float(labels["le"])
                    found[bound] = found.get(bound, 0.0) + sample.value
            elif stem.endswith("_perc"):  # of several engines the one that has most
                values[series] = max(values[series], sample.value)
            else:
                values[series] += sample.value
    return Scrape(values, {key: _buckets(found.items()) for key, found in cumulative.items()})


def _buckets(found: Iterable[tuple[float, float]]) -> Buckets:
    pairs = sorted(found)
    totals = [0.0, *(count for _, count in pairs)]
    counts = tuple(after - before for before, after in itertools.pairwise(totals))
    return Buckets(tuple(bound for bound, _ in pairs), counts)
