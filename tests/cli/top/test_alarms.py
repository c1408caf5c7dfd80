"""Each alarm just above its threshold, and silence at it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.cli.top import alarms as rules
from quire.cli.top.alarms import alarms

ALERTS = Path(__file__).parents[3] / "deploy/prometheus/alerts.yml"


def texts(*readings):
    return [(alarm.critical, alarm.text) for alarm in alarms(readings)]


def test_a_healthy_server_has_none(reading):
    calm = {"num_requests_running": 4, "kv_cache_usage_perc": 0.95, "num_requests_waiting": 2}
    readings = [reading(t, calm | {"num_steps_total": 10 * t}) for t in range(60)]
    assert texts(*readings) == [] and texts(readings[0]) == []


def test_states_are_told(reading):
    red = reading(0, {}, states={"m": "ready", "x": "failed"}, not_ready="HTTP 503: dead")
    assert texts(red) == [
        (True, "not ready: HTTP 503: dead"),
        (True, "x failed to load; the server's log says why"),
    ]


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ({}, {"engine_restarts_total": 2}, (True, "engine started again 2 times")),
        ({}, {"kv_canary_failures_total": 1}, (True, "1 cached KV blocks changed")),
        (
            {},
            {'admission_rejections_total{reason="queued_tokens"}': 3,
             'admission_rejections_total{reason="host"}': 0},
            (False, "refused at the door: 3 by queued_tokens"),
        ),
        (
            {'request_success_total{finished_reason="error"}': 5,
             'request_success_total{finished_reason="stop"}': 0},
            {'request_success_total{finished_reason="error"}': 7,
             'request_success_total{finished_reason="stop"}': 197},
            (True, "2 of 199 sequences ended with an error"),
        ),
        (
            {},
            {'request_timeouts_total{stage="queue"}': 6,
             'request_success_total{finished_reason="timeout"}': 100},
            (False, "the deadline ended 6 of 100 sequences"),
        ),
        (
            {},
            {"num_preemptions_total": 1, "preemption_recomputed_tokens_total": 10,
             "num_computed_tokens_total": 100},
            (False, "preempted once: 10% of the computation repeats"),
        ),
        (
            {},
            {"num_preemptions_total": 3, "preemption_recomputed_tokens_total": 11,
             "num_computed_tokens_total": 100},
            (False, "preempted 3 times: 11% of the computation repeats; lower --max-num-seqs"),
        ),
        (
            {},
            {'time_to_first_token_seconds_bucket{le="5.0"}': 0,
             'time_to_first_token_seconds_bucket{le="7.5"}': 4,
             'time_to_first_token_seconds_bucket{le="+Inf"}': 4},
            (False, "slow first tokens: p99 7.5 s"),
        ),
        (
            {},
            {'inter_token_latency_seconds_bucket{le="0.5"}': 0,
             'inter_token_latency_seconds_bucket{le="0.75"}': 4,
             'inter_token_latency_seconds_bucket{le="+Inf"}': 4},
            (False, "slow tokens: p99 0.75 s"),
        ),
        ({}, {"kv_cache_usage_perc": 0.951}, (False, "m: KV cache 95% full")),
        (
            {},
            {"kv_cache_usage_perc": 0.51, "kv_cache_fragmentation_perc": 0.31},
            (False, "m: 31% of the used KV slots are empty"),
        ),
    ],
)  # fmt: skip
def test_an_alarm_and_only_it_is_told(reading, before, after, expected):
    ((critical, text),) = texts(reading(0, before), reading(10, after))
    assert critical is expected[0] and text.startswith(expected[1])


@pytest.mark.parametrize(
    "after",
    [
        {'request_success_total{finished_reason="error"}': 1,
         'request_success_total{finished_reason="stop"}': 99},
        {'request_timeouts_total{stage="queue"}': 5,
         'request_success_total{finished_reason="timeout"}': 100},
        {"kv_cache_usage_perc": 0.95},
        {"kv_cache_usage_perc": 0.5, "kv_cache_fragmentation_perc": 0.9},
        {"kv_cache_usage_perc": 0.9, "kv_cache_fragmentation_perc": 0.3},
    ],
)  # fmt: skip
def test_a_threshold_itself_is_no_alarm(reading, after):
    assert texts(reading(0, {}), reading(10, after)) == []


def queue(reading, waiting, step=2.0):
    samples = [{"num_requests_waiting": n, "num_steps_total": i} for i, n in enumerate(waiting)]
    return [reading(step * i, sample) for i, sample in enumerate(samples)]


def test_a_queue_that_grows_is_told_and_one_that_shrinks_is_not(reading):
    grows = queue(reading, [0, 1, 3, 2, 5, 8])
    assert texts(*grows) == [(False, "queue grows: 0 to 8 in 10 s; more arrives than is served")]
    assert texts(*queue(reading, [0, 1, 3, 2, 5, 8], step=1.0)) == []
    assert texts(*queue(reading, [8, 5, 2, 3, 1, 1])) == []
    assert texts(*queue(reading, [0, 1, 0, 2, 5, 8])) == []
    assert texts(*queue(reading, [0, 1, 1, 1, 1, 1])) == []  # does not grow any more
    for few in ([1, 9], [1, 5, 9]):
        assert texts(*queue(reading, few, step=20.0)) == []
    full = [0, *(50 + n % 3 for n in range(40))]
    assert texts(*queue(reading, full)) == []


def test_a_stalled_engine_is_told_after_its_time(reading):
    pending = {"num_requests_running": 2, "num_requests_waiting": 1, "num_steps_total": 5}
    idle = {"num_requests_running": 0, "num_requests_waiting": 0, "num_steps_total": 5}
    readings = [reading(0, idle), *(reading(t, pending) for t in range(20, 31))]
    assert texts(*readings) == [(True, "m stands still: no step for 10 s, 3 pending")]
    assert texts(*readings[:-1]) == []
    assert texts(*readings, reading(31, pending | {"num_steps_total": 6})) == []


def test_critical_alarms_come_first(reading):
    found = texts(reading(0, {"kv_cache_usage_perc": 1}, states={"x": "failed"}))
    assert [critical for critical, _ in found] == [True, False]


def test_thresholds_are_those_of_the_alert_rules():
    text = ALERTS.read_text()
    for alert, value in {
        "QuireCacheFull": rules.KV_FULL,
        "QuireCacheFragmented": rules.KV_FRAGMENTED,
        "QuirePreempts": rules.RECOMPUTED,
        "QuireErrors": rules.ERRORS,
        "QuireDeadlinesMissed": rules.TIMEOUTS,
        "QuireSlowFirstToken": rules.SLOW_FIRST_TOKEN,
        "QuireSlowTokens": rules.SLOW_TOKENS,
    }.items():
        rule = text.partition(f"alert: {alert}\n")[2].partition("for:")[0]
        assert float(re.findall(r"> ([\d.]+)", rule)[0]) == value, alert
