"""A rank's share of a machine with several memory nodes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire.distributed.memory_nodes import (
    MemoryNode,
    bind_rank,
    cores_of_rank,
    nodes_of_rank,
    read_nodes,
)


def machine(root: Path, *lists: str) -> Path:
    """Make the files of a machine whose nodes have these processors."""
    for number, text in enumerate(lists):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(text + "\n")
    return root


def test_nodes_are_read_with_the_processors_that_are_allowed(tmp_path: Path) -> None:
    root = machine(tmp_path, "0-3,8-11", "4-7,12", "", "13")
    assert read_nodes(root, range(2, 13)) == [
        MemoryNode(0, frozenset({2, 3, 8, 9, 10, 11})),
        MemoryNode(1, frozenset({4, 5, 6, 7, 12})),
    ]
    assert read_nodes(tmp_path / "nothing", [0]) == []


@pytest.mark.parametrize(
    ("num_nodes", "size", "shares"),
    [
        (2, 2, [[0], [1]]),
        (2, 4, [[0], [0], [1], [1]]),
        (2, 3, [[0], [0], [1]]),
        (4, 2, [[0, 1], [2, 3]]),
        (3, 2, [[0], [1, 2]]),
    ],
)
def test_every_node_has_a_rank(num_nodes: int, size: int, shares: list[list[int]]) -> None:
    nodes = [MemoryNode(number, frozenset({number})) for number in range(num_nodes)]
    found = [[node.number for node in nodes_of_rank(nodes, rank, size)] for rank in range(size)]
    assert found == shares


def test_a_rank_stays_on_its_node(tmp_path: Path) -> None:
    """In a thread of its own, which is bound alone."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("binding needs two processors")
    root = machine(tmp_path, str(first), ",".join(map(str, others)))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(bind_rank, 0, 1, 1, root).result().text == "rank 0 may use all cores"
    with ThreadPoolExecutor(1) as pool:
        binding = pool.submit(bind_rank, 0, 2, 1, root).result()
        assert pool.submit(os.sched_getaffinity, 0).result() == {first}
        binding.release()  # from another thread
        assert pool.submit(os.sched_getaffinity, 0).result() == {first, *others}
    assert binding.text == "rank 0 is bound to memory node 0 (processors: 1)"
    assert os.sched_getaffinity(0) == {first, *others}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_engines_of_one_thread_are_let_go_in_any_order(tmp_path: Path, order: list[int]) -> None:
    """Each binds it as if the other did not; threads that it has started are let go with it."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("binding needs two processors")
    root = machine(tmp_path, str(first), ",".join(map(str, others)))

    def bind() -> list[set[int]]:
        found = []
        bindings = [bind_rank(rank, 2, 1, root) for rank in (0, 1)]
        with ThreadPoolExecutor(1) as started:
            found.append(started.submit(os.sched_getaffinity, 0).result())
            for number in order:
                bindings[number].release()
                found.append(started.submit(os.sched_getaffinity, 0).result())
        return found

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(bind).result() == [{*others}, {*others}, {first, *others}]


def test_one_node_that_ranks_share_with_others_binds_no_rank(tmp_path: Path) -> None:
    processors = os.sched_getaffinity(0)
    root = machine(tmp_path, f"{min(processors)}-{max(processors)}")
    told = bind_rank(1, 2, len(processors), root)
    assert told.text == "rank 1 may use all cores: there is one memory node, and others share it"
    assert os.sched_getaffinity(0) == processors


@pytest.mark.parametrize(
    ("size", "threads", "shares"),
    [
        (2, 2, [{0, 1}, {2, 3}]),
        (4, 1, [{0}, {1}, {2}, {3}]),
        (2, 1, [{0, 1, 2, 3}] * 2),  # others compute there, too
        (8, 1, [{0, 1, 2, 3}] * 8),
    ],
)
def test_ranks_that_fill_a_node_have_cores_each(
    size: int, threads: int, shares: list[set[int]]
) -> None:
    nodes = [MemoryNode(0, frozenset(range(4)))]
    assert [cores_of_rank(nodes, rank, size, threads) for rank in range(size)] == shares


def test_cores_of_two_nodes() -> None:
    nodes = [MemoryNode(0, frozenset({0, 1})), MemoryNode(1, frozenset({2, 3}))]
    assert [cores_of_rank(nodes, rank, 4, 1) for rank in range(4)] == [{0}, {1}, {2}, {3}]
    assert [cores_of_rank(nodes, rank, 2, 2) for rank in range(2)] == [{0, 1}, {2, 3}]
