"""The figures against their definitions, on records made by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.bench.bench_options import BenchOptions
from quire.bench.latency_metrics import Latencies, measure, peak_concurrency, peak_rate, percentile
from quire.bench.load_client import Record
from quire.bench.report import block, document
from quire.bench.workload import BenchRequest

#: The lines of the report that the seed of the project has, in its order.
LINES = (
    "Successful requests: / Failed requests: / Maximum request concurrency: / "
    "Request rate configured (RPS): / Benchmark duration (s): / Total input tokens: / "
    "Total generated tokens: / Request throughput (req/s): / Request goodput (req/s): / "
    "Output token throughput (tok/s): / Peak output token throughput (tok/s): / "
    "Peak concurrent requests: / Total token throughput (tok/s):"
).split(" / ")


def record(sent: float, times: list[float], tokens: int | None = None, prompt: int = 8) -> Record:
    count = len(times) if tokens is None else tokens
    made = Record(BenchRequest([1] * prompt, prompt, count), due=sent, sent=sent, times=times)
    made.num_prompt_tokens, made.num_output_tokens = prompt, count
    made.counted_by_server = True
    return made


@settings(deadline=None)  # the first call of numpy's takes long on a busy machine
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0.01, 100, exclude_min=True))
def test_percentiles_are_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_the_parts_of_a_request():
    item = Latencies.of(record(10.0, [10.5, 10.6, 10.8, 11.1]))
    assert item.ttft == pytest.approx(0.5)
    assert item.itls == pytest.approx([0.1, 0.2, 0.3])
    assert item.e2el == pytest.approx(item.ttft + sum(item.itls)) == pytest.approx(1.1)
    assert item.tpot == pytest.approx(0.6 / 3)


def test_tpot_differs_from_itl_when_a_chunk_has_several_tokens():
    item = Latencies.of(record(0.0, [1.0, 1.3, 1.6], tokens=7))
    assert item.itls == pytest.approx([0.3, 0.3])
    assert item.tpot == pytest.approx(0.1)


def test_a_single_token_has_no_tpot():
    metrics = measure([record(0.0, [1.0])], 1.0, [99.0], {})
    assert Latencies.of(record(0.0, [1.0])).tpot is None
    assert metrics.distributions["tpot"].num_samples == 0


def test_failed_requests_count_as_failed_and_nowhere_else():
    failed = record(0.0, [1.0, 2.0])
    failed.error = "HTTP 503: full"
    metrics = measure([record(0.0, [0.5, 1.0]), failed], 2.0, [99.0], {"ttft": 600.0})
    assert (metrics.completed, metrics.failed) == (1, 1)
    assert metrics.total_output_tokens == 2 and metrics.output_throughput == 1.0
    assert metrics.total_input_tokens == 8 and metrics.total_token_throughput == 5.0
    assert metrics.request_throughput == metrics.request_goodput == 0.5
    assert metrics.errors == {"HTTP 503: full": 1}


def test_goodput_needs_every_bound():
    records = [record(0.0, [0.1, 0.2]), record(0.0, [0.1, 0.9]), record(0.0, [0.8, 0.9])]
    assert measure(records, 1.0, [99.0], {"ttft": 500, "tpot": 500}).request_goodput == 1
    assert measure(records, 1.0, [99.0], {"ttft": 500}).request_goodput == 2
    assert measure(records, 1.0, [99.0], {}).request_goodput is None


def test_peaks():
    records = [record(0.0, [0.9, 1.1, 1.2]), record(1.0, [1.5, 3.0]), record(3.5, [4.0])]
    assert peak_concurrency(records) == 2
    assert peak_rate(records) == 3.0
    assert peak_rate([record(0.0, [0.5, 1.5], tokens=10)]) == 5.0
    assert peak_rate([]) == peak_concurrency([]) == 0


def test_few_samples_are_warned_of():
    few = measure([record(0.0, [0.1, 0.2])] * 99, 1.0, [99.0], {})
    assert [text for text in few.warnings if "P99 of TTFT rests on 99 samples" in text]
    enough = measure([record(0.0, [0.1, 0.2])] * 100, 1.0, [99.0, 50.0], {})
    assert enough.warnings == []


def test_short_answers_and_own_counts_are_warned_of():
    short = record(0.0, [0.1])
    short.job = BenchRequest([1], 8, 5)
    other = record(0.0, [0.1], prompt=9)
    other.counted_by_server = False
    warnings = " / ".join(measure([short, other], 1.0, [50.0], {}).warnings)
    assert "1 request ended before" in warnings and "1 answer without usage" in warnings


def example() -> list[Record]:
    """1,000 requests of 215 prompt and 180 output tokens, ten a second, in 105.23 s."""
    draw = random.Random(0)
    found = []
    for i in range(1000):
        sent = i / 10
        gap = draw.uniform(0.01, 0.02)
        times = [sent + 0.1 + gap * k for k in range(180)]
        found.append(record(sent, times, prompt=215))
    return found


def test_the_block_has_the_lines_of_a_known_run():
    options = BenchOptions(request_rate=10.0, max_concurrency=64, goodput=("ttft:200",))
    metrics = measure(example(), 105.23, options.percentiles(), options.slos())
    lines = block(metrics, options).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * 50
    assert [line[:40].rstrip() for line in lines[1:14]] == LINES
    values = {line[:40].rstrip(): line[41:].strip() for line in lines[1:14]}
    assert values["Total input tokens:"] == "215000"
    assert values["Total generated tokens:"] == "180000"
    assert values["Request throughput (req/s):"] == "9.50"
    assert values["Output token throughput (tok/s):"] == "1710.54"
    assert values["Total token throughput (tok/s):"] == "3753.68"
    assert lines[14] == "---------------Time to First Token----------------"
    assert lines[15].split() == ["Mean", "TTFT", "(ms):", "100.00"]
    assert [line.split()[0] for line in lines[15:18]] == ["Mean", "Median", "P99"]


def test_the_document_agrees_with_itself():
    options = BenchOptions(
        save_result=True, save_detailed=True, metadata=("machine=mine",), metric_percentiles="50,99"
    )
    records = example()[:100]
    metrics = measure(records, 12.5, options.percentiles(), options.slos())
    found = document(metrics, records, options, "m")
    assert found["output_throughput"] == found["total_output_tokens"] / found["duration"]
    tokens = found["total_input_tokens"] + found["total_output_tokens"]
    assert found["total_token_throughput"] == tokens / found["duration"]
    assert found["request_rate"] == "inf" and found["request_goodput"] is None
    assert found["machine"] == "mine"
    assert found["p50_ttft_ms"] == found["median_ttft_ms"]
    assert found["mean_tpot_ms"] == pytest.approx(1000 * np.mean(found["itls"]))
    for latency, ttft, gaps in zip(found["latencies"], found["ttfts"], found["itls"], strict=True):
        assert math.isclose(latency, ttft + sum(gaps))
    assert sum(found["output_lens"]) == found["total_output_tokens"]
