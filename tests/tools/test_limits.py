"""The table of limits: where time is said to go adds up, and a real run fills every line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from benchmarks.kernels.probe import ProbedRates
from benchmarks.kernels.roofline import peak_of
from benchmarks.limits.accounts import Costs, account, jobs_of
from benchmarks.limits.kernels import Kernel, measure
from benchmarks.limits.phases import Phase, totals
from benchmarks.peers.cases import Work
from quire.cli.main import run
from quire.kernels.cpu.native import native
from tools.random_checkpoint import PRESETS, random_checkpoint

SPEED = ProbedRates(
    2, "avx2", read_bytes_per_second=1e10, fma_flops=1e11, dot_flops=0, int8_ops=4e11
)
#: Llama-3.2-1B in Q8_0: its matrices, head, and a KV token of 16 layers with 8 heads of 64.
ONE_B = Work(1_312_000_000, 973_078_528, 262_668_288, 32768, 131072)


@cache
def costs() -> Costs:
    """Return them with a reader, which writes half a gigabyte when it is made."""
    return Costs(SPEED, barrier=1e-6, reader=native.MemoryReader())


def test_what_binds():
    assert costs().limit(1e7, 1e7, SPEED.fma_flops) == (1e-3, "memory")
    assert costs().limit(1e7, 1e9, SPEED.fma_flops) == (1e-2, "arithmetic")


def test_the_peak_of_a_weight_type_is_its_arithmetics():
    assert peak_of("Q4_K", SPEED) == peak_of("int8", SPEED) == 4e11
    # Without an instruction for bfloat16 its weights are multiplied in float32.
    assert peak_of("bfloat16", SPEED) == peak_of("float16", SPEED) == 1e11


@pytest.mark.parametrize(
    ("bound", "in_cache", "left"),
    [
        ("memory", 0.0075, {"call": 0.05, "barriers": 0.001, "instructions": 0.199, "rest": 0.25}),
        ("memory", 0.004, {"call": 0.05, "barriers": 0.001, "instructions": 0.0, "rest": 0.449}),
        ("memory", None, {"call": 0.05, "barriers": 0.001, "rest": 0.449}),
        ("arithmetic", None, {"call": 0.05, "barriers": 0.001, "instructions": 0.449, "rest": 0.0}),
    ],
)
def test_the_parts_of_a_call_add_up(bound, in_cache, left):
    found = account(costs(), 0.01, 0.005, bound, call=0.0005, jobs=10, in_cache=in_cache)
    assert found["of_limit"] == 0.5 and found["left"] == left
    assert sum(left.values()) == pytest.approx(0.5)


def test_nothing_is_left_of_a_call_at_its_limit():
    found = account(costs(), 0.001, 0.001, "memory", call=0.0005, jobs=10, in_cache=0.002)
    assert found["of_limit"] == 1 and not any(found["left"].values())


def test_one_stream_does_one_operation_a_byte_in_16_bits():
    """Two operations a weight of two bytes, whatever the file holds them in."""
    assert totals(ONE_B, Phase("", batch=1))["flops_per_byte_in_bf16"] == pytest.approx(1, abs=0.05)
    assert totals(ONE_B, Phase("", batch=8))["flops_per_byte_in_bf16"] == pytest.approx(8, rel=0.05)
    deep = totals(ONE_B, Phase("", batch=1, depth=8192))
    assert deep["bytes"] == ONE_B.file_bytes + (8192 + 4) * ONE_B.kv_bytes


def test_bandwidth_is_that_of_reads_before_and_after_the_work():
    """One read of four that a neighbour held up does not count."""
    events: list[str] = []

    class Reader:
        part_bytes = 1 << 20
        seconds = iter([1e-4, 9e-4, 2e-4, 2e-4])

        def read(self) -> float:
            events.append("read")
            return next(self.seconds)

    read, result = replace(costs(), reader=Reader()).around(lambda: events.append("work") or "done")
    assert events == ["read"] * 2 + ["work"] + ["read"] * 2 and result == "done"
    assert read.bandwidth == pytest.approx((1 << 20) / 2e-4)
    assert costs().bandwidth == 1e10 and read.speed.fma_flops == SPEED.fma_flops


def test_a_kernels_time_is_its_limit_and_what_is_left():
    """Calls are timed in turn, as many as fit between two reads."""
    counts = [0, 0]
    rows = np.ones((1024, 64), np.float32)

    def call(i: int) -> None:
        counts[i] += 1
        rows.sum()

    calls = [partial(call, 0), partial(call, 1)]
    kernel = Kernel("test", "sum", 1024, calls, lambda: None, rows.nbytes, 0)
    found = measure(kernel, costs(), rounds=3)
    assert found["seconds"]["repeats"] == sum(counts) - 2 >= 24
    assert counts[0] - counts[1] in (2, 3)  # one not timed, one whose jobs were counted
    share = found["limit_seconds"] / found["seconds"]["median"]
    assert found["of_limit"] == pytest.approx(share, abs=1e-3)
    left = sum(found["left"].values())
    assert left == pytest.approx(max(0, 1 - found["of_limit"]), abs=3e-3)


def test_jobs_are_counted():
    before = native.num_threads()
    native.set_num_threads(2)
    try:
        counters = np.zeros(8, np.int32)
        assert jobs_of(lambda: native.count_chunks(counters, 8, 1)) == 1
        assert jobs_of(lambda: native.count_chunks(counters, 1, 1)) == 0
        assert jobs_of(costs().reader.read) == 1
    finally:
        native.set_num_threads(before)


@pytest.mark.slow
def test_a_quick_table_of_a_tiny_model(tmp_path):
    random_checkpoint(tmp_path / "m", PRESETS["tiny-llama"])
    assert (
        run(["convert", str(tmp_path / "m"), str(tmp_path / "m.q8_0.gguf"), "--type", "q8_0"]) == 0
    )
    command = ["-m", "benchmarks.limits.limits", "--quick", "--part", "phases"]
    done = subprocess.run(
        [sys.executable, *command, str(tmp_path / "m.q8_0.gguf")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for line in ("load to the first", "prefill 512", "decode, batch 1", "decode, batch 32"):
        assert line in done.stdout
