"""The thread pool, driven from Python: every chunk once, for any caller and number of threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from quire.kernels.cpu.native import native


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    before = native.num_threads()
    yield
    native.set_num_threads(before)


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 1000])
def test_each_chunk_runs_once(threads: int, chunks: int, runs: bool) -> None:
    native.set_num_threads(threads)
    assert native.num_threads() == threads
    counts = np.zeros(max(chunks, 1), np.int32)
    for _ in range(20):
        native.count_chunks(counts, chunks, 1, runs)
    assert counts[:chunks].tolist() == [20] * chunks


def test_a_nested_call_runs_on_its_own_thread() -> None:
    native.set_num_threads(3)
    counts = np.zeros(50, np.int32)
    native.count_chunks(counts, 50, 7)
    assert counts.tolist() == [7] * 50


def test_callers_take_turns_while_the_pool_is_resized() -> None:
    native.set_num_threads(2)
    counts = [np.zeros(64, np.int32) for _ in range(6)]

    def call(mine: np.ndarray) -> None:
        for _ in range(200):
            native.count_chunks(mine, 64, 1)

    threads = [threading.Thread(target=call, args=(mine,)) for mine in counts]
    for thread in threads:
        thread.start()
    for size in (1, 3, 2, 4, 2):
        native.set_num_threads(size)
    for thread in threads:
        thread.join()
    assert all(mine.tolist() == [200] * 64 for mine in counts)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_its_own_threads() -> None:
    native.set_num_threads(2)
    counts = np.zeros(100, np.int32)
    native.count_chunks(counts, 100, 1)
    child = os.fork()
    if child == 0:
        mine = np.zeros(100, np.int32)
        for _ in range(100):
            native.count_chunks(mine, 100, 1)
        os._exit(0 if (mine == 100).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    native.count_chunks(counts, 100, 1)
    assert (counts == 2).all()


def test_bad_thread_counts_mean_one() -> None:
    native.set_num_threads(0)
    assert native.num_threads() == 1
