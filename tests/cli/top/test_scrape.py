"""Expositions as numbers: values, growth over restarts, quantiles."""

from __future__ import annotations

import pytest

from quire.cli.top.scrape import Buckets, Series, read_scrape
from quire.core.errors import QuireError
from tests.cli.top.conftest import exposition

INF = float("inf")


def buckets(*counts: float) -> dict[str, float]:
    """Cumulative samples of a TTFT histogram with the bounds 0.1, 0.2, 1."""
    bounds = ("0.1", "0.2", "1.0", "+Inf")
    name = "time_to_first_token_seconds_bucket"
    return {f'{name}{{le="{bound}"}}': n for bound, n in zip(bounds, counts, strict=True)}


def test_series_are_read_by_stem_model_and_labels():
    text = exposition({
        "a": {"num_requests_running": 3, 'step_seconds_total{stage="execute"}': 1.5},
        "b": {"num_requests_running": 4, 'step_seconds_total{stage="sample"}': 0.5},
    })  # fmt: skip
    scrape = read_scrape(text)
    assert scrape.models == ("a", "b")
    assert scrape.values[Series("step_seconds", "a", (("stage", "execute"),))] == 1.5
    assert scrape.value("num_requests_running") == 7
    assert scrape.value("num_requests_running", "b") == 4
    assert scrape.value("step_seconds", stage="sample") == 0.5
    assert scrape.value("step_seconds", "a", stage="sample") is None
    assert scrape.value("nothing") is None


def test_any_prefix_is_read():
    text = exposition({"a": {"num_requests_running": 3}}, prefix="vllm:")
    assert read_scrape(text).value("num_requests_running") == 3


def test_a_server_without_any_model_loaded_is_read():
    name = "quire:unread_answer_disconnects_total"
    scrape = read_scrape(f"# TYPE {name} counter\n{name} 0\n")
    assert scrape.models == () and scrape.value("unread_answer_disconnects") == 0


def test_series_of_other_programs_are_left_out():
    text = exposition({"a": {}}) + "# TYPE http_requests counter\nhttp_requests_total 3\n"
    assert read_scrape(text).value("http_requests") is None


@pytest.mark.parametrize("text", ["", "<html>", "a{b 1\n", "# TYPE up gauge\nup 1\n"])
def test_what_no_quire_server_says_is_refused(text):
    with pytest.raises(QuireError, match="must be"):
        read_scrape(text)


def test_counters_that_began_again_count_from_zero():
    before = read_scrape(exposition({"a": {"num_steps_total": 10}, "b": {"num_steps_total": 100}}))
    after = read_scrape(exposition({"a": {"num_steps_total": 25}, "b": {"num_steps_total": 7}}))
    assert after.increase(before, "num_steps", "a") == 15
    assert after.increase(before, "num_steps", "b") == 7
    assert after.increase(before, "num_steps") == 22
    assert after.increase(before, "nothing") is None


def test_a_model_that_was_loaded_meanwhile_counts_whole():
    before = read_scrape(exposition({"a": {"num_steps_total": 10}}))
    after = read_scrape(exposition({"a": {"num_steps_total": 10}, "b": {"num_steps_total": 3}}))
    assert after.increase(before, "num_steps") == 3


def test_histograms_are_what_came_between_two_scrapes():
    before = read_scrape(exposition({"a": buckets(5, 5, 6, 6)}))
    after = read_scrape(exposition({"a": buckets(6, 8, 10, 10), "b": buckets(0, 1, 1, 2)}))
    stem = "time_to_first_token_seconds"
    added = after.observed(before, stem, "a")
    assert added == Buckets((0.1, 0.2, 1.0, INF), (1, 2, 1, 0))
    assert after.observed(before, stem) == Buckets((0.1, 0.2, 1.0, INF), (1, 3, 1, 1))
    assert after.observed(before, "nothing") is None


def test_a_histogram_that_began_again_counts_whole():
    """One bucket fell although the whole rose: the difference would have a negative count."""
    before = read_scrape(exposition({"a": buckets(5, 5, 5, 5)}))
    after = read_scrape(exposition({"a": buckets(1, 1, 9, 9)}))
    added = after.observed(before, "time_to_first_token_seconds")
    assert added is not None and added.counts == (1, 0, 8, 0)


@pytest.mark.parametrize(
    "counts, part, value",
    [
        ((10, 0, 0, 0), 0.5, 0.05),  # halfway in the first bucket, from 0
        ((1, 2, 1, 0), 0.5, 0.15),  # rank 2: the first of the two in 0.1 to 0.2
        ((1, 2, 1, 0), 0.75, 0.2),
        ((0, 0, 4, 0), 1.0, 1.0),
        ((0, 0, 4, 0), 0.0, 0.2),
        ((1, 0, 0, 3), 0.99, 1.0),  # without upper bound: the lower one
    ],
)
def test_quantiles_lie_evenly_in_their_bucket(counts, part, value):
    found = Buckets((0.1, 0.2, 1.0, INF), counts).quantile(part)
    assert found == pytest.approx(value)


def test_nothing_has_no_quantile():
    assert Buckets((0.1, INF), (0, 0)).quantile(0.5) is None
