"""The cores that a rank computes on: those of a memory node, or cores of its own.

Memory lies on the node of the thread that first writes to it, so a rank whose threads stay on one
node has its weights and its cache there. Ranks that fill the cores have separate ones: the system
may wake a rank on the core of a rank that others wait for, while another core is idle.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire.kernels.cpu.native import native


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A part of the machine: a socket, or a share of one.

    Attributes:
        number: The system's number of the node.
        processors: The node's processors that this process may use.
    """

    number: int
    processors: frozenset[int]


def read_nodes(root: Path, allowed: Collection[int]) -> list[MemoryNode]:
    """Return the nodes below ``root`` (``sys``) that have processors of ``allowed``."""
    found = []
    for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist"):
        own = _numbers(path.read_text()) & set(allowed)
        if own:
            found.append(MemoryNode(int(path.parent.name.removeprefix("node")), frozenset(own)))
    return sorted(found, key=lambda node: node.number)


def nodes_of_rank(nodes: Sequence[MemoryNode], rank: int, size: int) -> Sequence[MemoryNode]:
    """Return a rank's share of the nodes: neighbours share one where ranks outnumber them."""
    if size <= len(nodes):
        return nodes[rank * len(nodes) // size : (rank + 1) * len(nodes) // size]
    return [nodes[rank * len(nodes) // size]]


def cores_of_rank(
    nodes: Sequence[MemoryNode], rank: int, size: int, threads: int
) -> frozenset[int]:
    """Return the processors of a rank's nodes; where ranks fill them, those of this rank alone."""
    own = nodes_of_rank(nodes, rank, size)
    processors = sorted(frozenset[int]().union(*(node.processors for node in own)))
    neighbours = [other for other in range(size) if nodes_of_rank(nodes, other, size) == own]
    if len(neighbours) * threads == len(processors):
        first = neighbours.index(rank) * threads
        processors = processors[first : first + threads]
    return frozenset(processors)


@dataclass(frozen=True, slots=True)
class Binding:
    """A rank whose thread is kept on some cores until :meth:`release`, from any thread.

    Attributes:
        text: Description for the log.
        thread: The system's number of the thread; None where it was not bound.
    """

    text: str
    thread: int | None = None

    def release(self) -> None:
        """Let the thread, and those it has started, run where it could before the first binding."""
        if self.thread is not None:
            _bound.leave(self.thread)


def bind_rank(rank: int, size: int, threads: int, root: Path = Path("/")) -> Binding:
    """Keep this thread, and those that it will start, on the rank's share of the machine.

    A thread may be bound by several engines, which release it in any order.

    Args:
        rank, size: Index of this process among those of the machine, and their number.
        threads: Threads that each process computes with.
        root: Root of the system's files.
    """
    if size == 1 or not hasattr(os, "sched_setaffinity"):
        return Binding(f"rank {rank} may use all cores")
    thread = threading.get_native_id()
    allowed = _bound.before(thread)
    nodes = read_nodes(root, allowed) or [MemoryNode(0, frozenset(allowed))]
    processors = cores_of_rank(nodes, rank, size, threads)
    if processors == allowed:
        return Binding(
            f"rank {rank} may use all cores: there is one memory node, and others share it"
        )
    try:
        _bound.keep(thread, processors)
    except OSError as error:
        return Binding(f"rank {rank} may use all cores: the system refuses to bind it ({error})")
    own = nodes_of_rank(nodes, rank, size)
    if len(nodes) > 1:
        native.use_memory_nodes([node.number for node in own])
    names = ", ".join(str(node.number) for node in own)
    text = f"rank {rank} is bound to memory node {names} (processors: {len(processors)})"
    return Binding(text, thread)


class _BoundThreads:
    """Processors of threads before they were bound, and how often each thread is bound."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[int, frozenset[int]] = {}
        self._count: Counter[int] = Counter()

    def before(self, thread: int) -> frozenset[int]:
        with self._lock:
            return self._before.get(thread) or frozenset(os.sched_getaffinity(thread))

    def keep(self, thread: int, processors: frozenset[int]) -> None:
        with self._lock:
            before = self._before.get(thread) or frozenset(os.sched_getaffinity(thread))
            os.sched_setaffinity(thread, processors)
            self._before[thread] = before
            self._count[thread] += 1

    def leave(self, thread: int) -> None:
        with self._lock:
            self._count[thread] -= 1
            if self._count[thread]:
                return
            before = self._before.pop(thread)
            native.use_memory_nodes([])
            with suppress(OSError):  # the thread has ended
                bound = os.sched_getaffinity(thread)
                for task in {thread, *map(int, os.listdir("/proc/self/task"))}:
                    with suppress(OSError):
                        if os.sched_getaffinity(task) == bound:
                            os.sched_setaffinity(task, before)


_bound = _BoundThreads()


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as ``0-3,8``."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found
