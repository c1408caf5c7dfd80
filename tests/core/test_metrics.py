"""Histograms against exact percentiles; counters that go on over restarts."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.metrics import LATENCY_BUCKETS, METRICS, TTFT_BUCKETS, HistogramCounts, add_counters


def quantile(histogram: HistogramCounts, q: float) -> float:
    """Prometheus' ``histogram_quantile``: linear inside the bucket that holds the rank."""
    rank = q * sum(histogram.counts)
    below = 0
    for index, count in enumerate(histogram.counts):
        if below + count >= rank and count:
            if index == len(histogram.bounds):
                return histogram.bounds[-1]
            low = histogram.bounds[index - 1] if index else 0.0
            return low + (histogram.bounds[index] - low) * (rank - below) / count
        below += count
    raise AssertionError("no values")


@given(
    st.lists(st.floats(1e-5, 5000, allow_nan=False), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.95, 0.99]),
    st.sampled_from([TTFT_BUCKETS, LATENCY_BUCKETS]),
)
def test_percentiles_are_within_a_bucket_of_the_exact_ones(values, q, bounds):
    histogram = HistogramCounts(bounds)
    for value in values:
        histogram.observe(value)
    rank = max(1, -(-int(q * 100) * len(values) // 100))  # of the smallest value that reaches q
    exact = sorted(values)[rank - 1]
    found = bisect_left(bounds, quantile(histogram, q))
    assert abs(min(found, len(bounds)) - bisect_left(bounds, exact)) <= 1
    assert histogram.total == pytest.approx(sum(values))


def test_bounds_are_inclusive_and_repeats_count():
    histogram = HistogramCounts((1, 2))
    for value in (0, 1, 1.5, 2, 3):
        histogram.observe(value)
    histogram.observe(2, times=10)
    assert histogram.state() == [27.5, 2, 12, 1]


def test_counters_go_on_and_gauges_do_not():
    before = {"num_steps": 5, "num_requests_running": 3, "iteration_tokens_total": [4.0, 1, 1]}
    after = {"num_steps": 2, "num_requests_running": 1, "iteration_tokens_total": [1.0, 1, 0]}
    assert add_counters(before, after) == {
        "num_steps": 7,
        "num_requests_running": 1,
        "iteration_tokens_total": [5.0, 2, 1],
    }
    labelled = {'request_success{finished_reason="stop"}': 2}
    assert add_counters(labelled, {}) == labelled


def test_every_metric_says_what_it_is():
    for stem, metric in METRICS.items():
        assert metric.help.endswith("."), stem
        assert list(metric.buckets) == sorted(set(metric.buckets)), stem
        assert not stem.endswith("_total") or metric.kind == "histogram", stem
