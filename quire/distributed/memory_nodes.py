"""Which cores a rank computes on: those of a memory node, or of its own.

Memory lies on the node of the thread that first writes to it, so a rank whose threads stay on one
node has its weights and its cache there. Ranks that fill the cores have theirs each: the system may
wake a rank on the core of one that is waited for while another core has nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire.kernels.cpu.native import native


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A part of the machine: a socket, or a share of one.

    Attributes:
        number: As the system counts them.
        processors: Those of it that this process may use.
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


def bind_rank(rank: int, size: int, threads: int, root: Path = Path("/")) -> str:
    """Keep this thread, and those that it will start, on the rank's share of the machine.

    Args:
        rank, size: Of this process among those of the machine.
        threads: That each of them computes with.
        root: Of the system's files.

    Returns:
        What was done, for the log.
    """
    if size == 1 or not hasattr(os, "sched_setaffinity"):
        return f"rank {rank} may use all cores"
    allowed = os.sched_getaffinity(0)
    nodes = read_nodes(root, allowed) or [MemoryNode(0, frozenset(allowed))]
    processors = cores_of_rank(nodes, rank, size, threads)
    if processors == allowed:
        return f"rank {rank} may use all cores: there is one memory node, and others share it"
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        return f"rank {rank} may use all cores: the system refuses to bind it ({error})"
    own = nodes_of_rank(nodes, rank, size)
    if len(nodes) > 1:
        native.use_memory_nodes([node.number for node in own])
    names = ", ".join(str(node.number) for node in own)
    return f"rank {rank} is bound to memory node {names}, {len(processors)} processors"


def allow(processors: Collection[int]) -> None:
    """Undo :func:`bind_rank`: let this thread run on ``processors``, and memory lie anywhere."""
    if processors:
        with suppress(OSError):
            os.sched_setaffinity(0, processors)
    native.use_memory_nodes([])


def allowed_processors() -> frozenset[int]:
    """Return what this thread may run on; nothing where the system does not tell."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ())


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as ``0-3,8``."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found
