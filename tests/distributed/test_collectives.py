"""Every collective over every transport, against numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.distributed.segment_layout import SegmentSizes
from tests.distributed.collective_cases import check_group
from tests.distributed.thread_group import thread_groups
from tests.distributed.worlds import Ranks, shared_memory
from tests.ports import free_ports
from tests.sizes import sized

TARGET = "tests.distributed.collective_cases:run"
TIMES = sized(1, 2)
SMALL = SegmentSizes(area=2048, mailbox=4096, ring=4096)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_threads(size: int) -> None:
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda group: check_group(group, 7 + size), thread_groups(size)))


@pytest.mark.parametrize(
    ("size", "sizes"), [(1, SMALL), (2, None), (2, SMALL), (3, SMALL), (4, SMALL)]
)
def test_processes_that_share_memory(size: int, sizes: SegmentSizes | None) -> None:
    with (
        shared_memory(size, sizes=sizes) as memory,
        Ranks(TARGET, memory, size, size, TIMES) as ranks,
    ):
        assert ranks.ends() == ["right shared memory"] * size


@pytest.mark.parametrize("size", [2, 3])
def test_processes_that_torch_joins(size: int) -> None:
    pytest.importorskip("torch")
    with Ranks(TARGET, free_ports(), size, size, TIMES) as ranks:
        assert ranks.ends() == ["right gloo"] * size
