"""Figures between two readings, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from quire.cli.top.figures import Percentiles, figures
from quire.cli.top.reading import History

BEFORE = {
    "num_requests_running": 9, "num_requests_waiting": 9,
    'prompt_tokens_by_source_total{source="local_compute"}': 100,
    'prompt_tokens_by_source_total{source="local_cache_hit"}': 50,
    "generation_tokens_total": 1000,
    'request_success_total{finished_reason="stop"}': 1,
    'request_success_total{finished_reason="length"}': 2,
    "prefix_cache_queries_total": 150, "prefix_cache_hits_total": 50,
    "num_steps_total": 10,
    'step_seconds_total{stage="schedule"}': 1, 'step_seconds_total{stage="execute"}': 2,
    'step_seconds_total{stage="sample"}': 3, 'step_seconds_total{stage="update"}': 4,
    'step_seconds_total{stage="detokenize"}': 5,
    "estimated_read_bytes_per_gpu_total": 1e9, "estimated_flops_per_gpu_total": 2e9,
    'inter_token_latency_seconds_bucket{le="0.1"}': 0,
    'inter_token_latency_seconds_bucket{le="+Inf"}': 0,
}  # fmt: skip
AFTER = {
    "num_requests_running": 3, "num_requests_waiting": 1,
    'prompt_tokens_by_source_total{source="local_compute"}': 180,
    'prompt_tokens_by_source_total{source="local_cache_hit"}': 170,
    "generation_tokens_total": 1400,
    'request_success_total{finished_reason="stop"}': 5,
    'request_success_total{finished_reason="length"}': 4,
    "prefix_cache_queries_total": 350, "prefix_cache_hits_total": 170,
    "num_steps_total": 30,
    'step_seconds_total{stage="schedule"}': 1.1, 'step_seconds_total{stage="execute"}': 3.6,
    'step_seconds_total{stage="sample"}': 3.2, 'step_seconds_total{stage="update"}': 4.1,
    'step_seconds_total{stage="detokenize"}': 5.5,
    "estimated_read_bytes_per_gpu_total": 9e9, "estimated_flops_per_gpu_total": 6e9,
    'num_kv_blocks{state="used"}': 20, 'num_kv_blocks{state="free"}': 60,
    "num_kv_block_references": 50,
    'inter_token_latency_seconds_bucket{le="0.1"}': 100,
    'inter_token_latency_seconds_bucket{le="+Inf"}': 100,
}  # fmt: skip


def test_each_figure_is_its_difference_over_the_time(reading):
    found = figures(reading(100, BEFORE), reading(104, AFTER))
    assert found.elapsed == 4
    assert (found.running, found.waiting) == (3, 1)
    assert (found.prompt_rate, found.generation_rate, found.finish_rate) == (20, 100, 1.5)
    assert found.prefix_hit_part == 0.6
    assert (found.kv_used, found.kv_free, found.kv_usage, found.kv_sharing) == (20, 60, 0.25, 2.5)
    assert found.step_rate == 5
    assert found.step_seconds == pytest.approx(2.0)
    assert found.stage_parts == pytest.approx(
        {"schedule": 0.05, "execute": 0.8, "sample": 0.1, "update": 0.05}
    )
    assert found.stage_seconds["detokenize"] == 0.5
    assert (found.read_rate, found.flop_rate) == (2e9, 1e9)
    assert found.ttft is None and found.itl == Percentiles(
        pytest.approx(0.05), pytest.approx(0.095), pytest.approx(0.099)
    )
    assert figures(reading(100, BEFORE), reading(104, AFTER), "other").running is None


def test_a_server_that_does_nothing_has_no_shares(reading):
    found = figures(reading(0, AFTER), reading(1, AFTER))
    assert (found.generation_rate, found.step_rate, found.stage_parts) == (0, 0, {})
    assert found.prefix_hit_part is None and found.itl is None


def test_a_history_covers_its_window_and_not_much_more(reading):
    history = History(60)
    for second in range(200):
        history.add(reading(second, {}))
    assert history.readings[0].seconds == 139 and history.readings[-1].seconds == 199
    assert [r.seconds for r in history.last(2)] == [197, 198, 199]
    assert [r.seconds for r in history.last(0.1)] == [198, 199]


def test_readings_before_a_restart_are_dropped(reading):
    cpu = 'process_cpu_seconds_total{process="server"}'
    history = History(60)
    for second, spent in enumerate((100, 101, 0.5, 0.6)):
        history.add(reading(second, {cpu: spent}))
    assert [r.seconds for r in history.readings] == [2, 3]
