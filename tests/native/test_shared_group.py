"""Collectives and streams in native code: what they refuse, driven from one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.distributed.shared_memory_group import SharedMemory
from quire.kernels.cpu.native import native
from tests.distributed.collective_cases import check_group

HEADER = native.shared_segment_header_bytes


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    found = SharedMemory.create(2)
    yield found
    found.close()


def test_ranks_as_threads_with_a_view_each(memory: SharedMemory) -> None:
    views = [memory, SharedMemory.of_process(os.getpid(), memory.descriptor, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda view: check_group(view.group(), 3), views))
    views[1].close()


def test_memory_that_a_rank_may_not_have_is_said(memory: SharedMemory) -> None:
    with pytest.raises(ConfigError, match=r"must be able to open memory of process \d+"):
        SharedMemory.of_process(os.getpid(), 1 << 20, 1)


def test_a_segment_must_be_one() -> None:
    descriptor = os.memfd_create("short")
    try:
        with pytest.raises(ValueError, match="must be that of a segment"):
            native.SharedSegment(descriptor, 0, 0.0, 1.0)
        os.ftruncate(descriptor, HEADER)
        for rank in (-1, native.max_ranks):
            with pytest.raises(ValueError, match="ranks go from 0 to"):
                native.SharedSegment(descriptor, rank, 0.0, 1.0)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("offset", "area", "members", "rank"),
    [
        (0, 512, [0, 1], 0),  # the header
        (HEADER + 1, 512, [0, 1], 0),
        (HEADER, 1 << 40, [0, 1], 0),
        (HEADER, 100, [0, 1], 0),
        (HEADER, 64, [0, 1], 0),
        (HEADER, 512, [0, 1], 2),
        (HEADER, 512, [0, 1], -1),
        (HEADER, 512, [0, 100_000], 0),
        (HEADER, 512, [], 0),
    ],
)
def test_a_group_must_lie_in_the_segment(
    memory: SharedMemory, offset: int, area: int, members: list[int], rank: int
) -> None:
    with pytest.raises(ValueError, match="shared group"):
        native.SharedGroup(memory._native, offset, area, members, rank)


@pytest.mark.parametrize(
    ("offset", "capacity", "rank"),
    [(0, 64, 0), (HEADER, 100, 0), (HEADER, 32, 0), (HEADER, 1 << 40, 0), (HEADER, 64, 5)],
)
def test_a_stream_must_lie_in_the_segment(
    memory: SharedMemory, offset: int, capacity: int, rank: int
) -> None:
    with pytest.raises(ValueError, match="shared stream"):
        native.SharedStream(memory._native, offset, capacity, 0, [1], rank)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("gather", (np.zeros(2, np.float32), [8, 8], 2, np.zeros(8, np.float32), -1)),
        ("gather", (np.zeros(4, np.float32), [8, 8], 2, np.zeros(7, np.float32), -1)),
        ("gather", (np.zeros(4, np.float32), [8], 2, np.zeros(8, np.float32), -1)),
        ("gather", (np.zeros(4, np.float32), [8, 8], 2, None, 2)),
        ("gather", (np.zeros(4, np.float32), [2**63, 2**63 - 1], 2**40, None, 1)),
        ("all_reduce", (np.zeros(4, np.float64),)),
        ("all_reduce", (np.zeros((4, 4), np.float32)[:, 1],)),
        ("all_to_all", ([np.zeros(4)], [np.zeros(4), np.zeros(4)])),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    memory: SharedMemory, method: str, arguments: tuple[Any, ...]
) -> None:
    group = native.SharedGroup(memory._native, HEADER + 8192, 512, [0, 1], 0)
    with pytest.raises((ValueError, BufferError)):
        getattr(group, method)(*arguments)
