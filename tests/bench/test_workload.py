"""Lengths, prompts and arrival times: what was asked for, and the same again for the same seed."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench.arrivals import arrival_times
from quire.bench.bench_options import BenchOptions
from quire.bench.workload import make_jobs, read_trace
from quire.core.errors import ConfigError
from quire.store.hub import resolve_model
from quire.text.tokenizers.tokenizer import load_tokenizer

TRACE = Path(__file__).parents[3] / "shared/data/traces/azure_llm_2023_conv.csv"


@given(st.integers(1, 50), st.floats(0.01, 1e3), st.floats(0.05, 50), st.integers(0, 2**32))
def test_arrivals_ascend_at_exactly_the_offered_rate(count, rate, burstiness, seed):
    times = arrival_times(count, rate, burstiness, random.Random(seed))
    assert len(times) == count and times[0] == 0 and times == sorted(times)
    assert times[-1] == pytest.approx((count - 1) / rate)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_the_burstiness_says(burstiness):
    times = arrival_times(20001, 10.0, burstiness, random.Random(1))
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    # The coefficient of variation of a gamma distribution; 1 is Poisson's.
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(
        burstiness**-0.5, rel=0.05
    )


def test_poisson_arrivals_have_exponential_gaps():
    times = arrival_times(20001, 10.0, 1.0, random.Random(2))
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    for share in (0.1, 0.5, 0.9, 0.99):
        below = sum(gap <= -math.log(1 - share) / 10.0 for gap in gaps) / len(gaps)
        assert below == pytest.approx(share, abs=0.01)


def test_an_infinite_rate_is_a_burst():
    assert arrival_times(3, math.inf, 1.0, random.Random(0)) == [0.0] * 3


def test_the_same_seed_gives_the_same_jobs():
    options = {"dataset_name": "lognormal", "num_prompts": 20, "input_len": 50, "output_len": 20}
    first = make_jobs(BenchOptions(**options), None)
    assert first == make_jobs(BenchOptions(**options), None)
    assert first != make_jobs(BenchOptions(**options, seed=1), None)


def test_lognormal_lengths_have_the_mean_asked_for():
    options = BenchOptions(
        dataset_name="lognormal", num_prompts=20000, input_len=40, output_len=10, spread=0.8
    )
    jobs = make_jobs(options, None)
    assert statistics.fmean(job.num_prompt_tokens for job in jobs) == pytest.approx(40, rel=0.03)
    assert statistics.fmean(job.max_tokens for job in jobs) == pytest.approx(10, rel=0.03)
    logs = [math.log(job.num_prompt_tokens) for job in jobs]
    assert statistics.pstdev(logs) == pytest.approx(0.8, rel=0.03)
    assert all(len(job.prompt) == job.num_prompt_tokens for job in jobs)


def test_random_lengths_stay_in_the_range_and_limits_cut():
    options = BenchOptions(
        num_prompts=300, input_len=100, output_len=10, range_ratio=0.5, max_input_len=120
    )
    lengths = [job.num_prompt_tokens for job in make_jobs(options, None)]
    assert min(lengths) >= 50 and max(lengths) == 120


def test_a_shared_prefix_is_shared():
    jobs = make_jobs(BenchOptions(num_prompts=3, input_len=7, prefix_len=11), None)
    assert len({tuple(job.prompt[:11]) for job in jobs}) == 1
    assert len({tuple(job.prompt[11:]) for job in jobs}) == 3
    assert [job.num_prompt_tokens for job in jobs] == [18] * 3


def test_texts_have_exactly_so_many_tokens():
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    options = BenchOptions(
        backend="openai-chat", dataset_name="lognormal", num_prompts=30, input_len=60
    )
    for job in make_jobs(options, tokenizer):
        assert len(tokenizer.encode(job.prompt, add_special_tokens=False)) == job.num_prompt_tokens


def test_a_trace_is_read_in_order(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    rows = read_trace(path, 2)
    assert [(r.num_prompt_tokens, r.max_tokens) for r in rows] == [(374, 44), (396, 109)]
    assert [r.start for r in rows] == [0.0, pytest.approx(4.314579)]
    timed = BenchOptions(dataset_name="timed_trace", dataset_path=str(path), num_prompts=2)
    assert [job.start for job in make_jobs(timed, None)] == [r.start for r in rows]
    untimed = BenchOptions(dataset_name="trace", dataset_path=str(path), num_prompts=2)
    assert [job.start for job in make_jobs(untimed, None)] == [None, None]


@pytest.mark.skipif(not TRACE.exists(), reason="no recorded trace next to the checkout")
def test_a_recorded_trace_is_read_whole():
    rows = read_trace(TRACE, 19366)
    assert rows[0].start == 0.0 and all(row.num_prompt_tokens > 0 for row in rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,c\n2023-11-16 18:15:46,x,4\n", "line 2"),
        ("a,b,c\nnever,1,4\n", "line 2"),
        ("a,b,c\n1.5,1\n", "line 2"),
        ("a,b,c\n1.5,1,1\n", "the 1 rows"),
    ],
)
def test_a_bad_trace_is_refused(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_trace(path, 2)


@pytest.mark.parametrize(
    "keywords",
    [
        {"num_prompts": 0}, {"request_rate": 0.0}, {"burstiness": 0.0}, {"max_concurrency": 0},
        {"dataset_name": "trace"}, {"percentile_metrics": "tfft"}, {"metric_percentiles": "0"},
        {"metric_percentiles": "high"}, {"goodput": ("ttft",)}, {"goodput": ("tft:3",)},
        {"header": ("K",)}, {"header": ("K=V\r\nA: b",)}, {"metadata": ("=V",)}, {"port": 70000},
        {"dataset_name": "timed_trace", "dataset_path": "x", "request_rate": 2.0},
        {"goodput": ("ttft:nan",)}, {"goodput": ("ttft:-1",)}, {"temperature": math.inf},
        {"ready_check_timeout_sec": math.nan}, {"ready_check_timeout_sec": -1.0},
        {"endpoint": "v1/completions"}, {"save_detailed": True}, {"label": "x"},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(keywords):
    with pytest.raises(ConfigError, match=r"^\[bench\] --"):
        BenchOptions(**keywords)
