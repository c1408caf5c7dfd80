"""Collectives: the calls that ranks computing one model together make to each other.

T tokens of the step, D model dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.kernels.batch.forward_batch import Array


@dataclass(slots=True)
class CollectiveCounts:
    """A rank's calls so far.

    Attributes:
        calls: Number of calls, by method.
        num_bytes: Bytes of payloads, by method: each call's array counts once, whatever the number
            of ranks and its way to them.
    """

    calls: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, num_bytes: int) -> None:
        """Count a call of a method."""
        self.calls[name] = self.calls.get(name, 0) + 1
        self.num_bytes[name] = self.num_bytes.get(name, 0) + num_bytes


class Group(Protocol):
    """Ranks 0 to ``size - 1``; all of them call the same methods in the same order.

    Arrays are contiguous, on the host for groups of processes of one machine. Results do not depend
    on which rank calls first: sums are formed in the order of ranks.

    Every method raises :class:`~quire.core.errors.RankDeadError` when a rank has died or does not
    call in time.

    Attributes:
        rank: Rank of this process.
        size: Number of ranks.
        name: Name of the transport, such as ``shared memory``.
        counts: Calls of this rank.
    """

    rank: int
    size: int
    name: str
    counts: CollectiveCounts

    def all_reduce(self, x: Array) -> Array:
        """Replace float32 ``x``, of any shape, by the sum of all ranks' arrays in their order."""
        ...

    def all_gather_columns(self, part: Array, widths: Sequence[int], out: Array) -> Array:
        """Lay all ranks' columns next to each other.

        Args:
            part: (T, widths[rank]) of this rank, float32.
            widths: Columns of all ranks, by rank; 0 is allowed.
            out: (T, sum(widths)), written and returned; not ``part``.
        """
        ...

    def gather_columns(
        self, part: Array, widths: Sequence[int], out: Array | None, root: int = 0
    ) -> Array | None:
        """Do the same for one rank alone; the others give None for ``out`` and get None."""
        ...

    def all_to_all(self, parts: Sequence[Array], out: Sequence[Array]) -> Sequence[Array]:
        """Send ``parts[i]`` to rank i and get rank i's as ``out[i]``, any sizes, float32 or int32.

        Both sides know the sizes beforehand: ``out[i]`` has the size of rank i's array.
        """
        ...

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true for any rank."""
        ...

    def send(self, x: Array, rank: int) -> None:
        """Send ``x`` to a rank that calls :meth:`recv`; may return before that rank has it."""
        ...

    def recv(self, x: Array, rank: int) -> Array:
        """Write a rank's next message to ``x``; its messages arrive in their order."""
        ...

    def close(self) -> None:
        """Release memory and connections; no call follows."""
        ...
