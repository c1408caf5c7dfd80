"""Compute threads among others: when others take cores, results and the threads' cores stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from tests.sizes import sized

CALLS = sized(200, 400)


@pytest.fixture
def strangers():
    """Two processes that compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(2)]
    yield
    for process in processes:
        process.kill()
        process.wait()


def allowed_cores() -> dict[str, frozenset[int]]:
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            found[thread] = frozenset(os.sched_getaffinity(int(thread)))
    return found


@pytest.fixture
def pool():
    """Puts the number of threads, and their cores, right afterwards."""
    threads, cores = native.num_threads(), os.sched_getaffinity(0)
    yield
    set_cores(cores)
    native.set_num_threads(threads)


def set_cores(cores):
    """As ``taskset -ap`` and a container's new cpuset do."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_cores_that_come_and_go(pool, strangers):
    """Fewer cores than threads for a while: the same bits, and no thread waits for ever."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((1024, 1024), dtype=np.float32)
    linear = CpuLinear([HostTensor("w", "float32", weight)], [], "float32")
    x = rng.standard_normal((96, 1024), dtype=np.float32)
    native.set_num_threads(1)
    expected = linear(x).tobytes()
    native.set_num_threads(3)
    cores = sorted(os.sched_getaffinity(0))
    for turn in range(sized(16, 40)):
        set_cores(cores[turn % 2 : turn % 2 + 1] if turn % 4 < 2 else cores)
        for _ in range(10):
            assert linear(x).tobytes() == expected


def test_threads_that_lose_their_cores(strangers):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((1024, 1024), dtype=np.float32)
    linear = CpuLinear([HostTensor("w", "float32", weight)], [], "float32")
    x = rng.standard_normal((96, 1024), dtype=np.float32)
    cores = frozenset(os.sched_getaffinity(0))
    threads = native.num_threads()
    native.set_num_threads(1)
    expected = linear(x).tobytes()
    native.set_num_threads(3)
    try:
        for _ in range(CALLS):
            assert linear(x).tobytes() == expected
        # A worker that was helped puts its cores right after its last piece of work.
        for _ in range(6000):
            after = allowed_cores()
            if set(after.values()) == {cores}:
                break
            time.sleep(0.01)
        assert set(after.values()) == {cores}, after
    finally:
        native.set_num_threads(threads)


def test_memory_is_spread_over_the_nodes():
    """On a machine with one node the kernel takes the same request, and has one to choose."""
    assert native.num_memory_nodes() >= 1
    policy = native.policy_of_spread_memory()
    if not policy:
        pytest.skip("the system refuses memory policies")
    assert policy.startswith("interleave:0")
