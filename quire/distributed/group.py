"""Collectives: what ranks that compute one model together may ask of each other.

T tokens of the step, D model dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.kernels.forward_batch import Array


@dataclass(slots=True)
class CollectiveCounts:
    """What a rank has asked for.

    Attributes:
        calls: By name of the method.
        num_bytes: Likewise, of payloads: the array that the call is about, once, whatever way it
            takes to how many ranks.
    """

    calls: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, num_bytes: int) -> None:
        """Count a call."""
        self.calls[name] = self.calls.get(name, 0) + 1
        self.num_bytes[name] = self.num_bytes.get(name, 0) + num_bytes


class Group(Protocol):
    """Ranks 0 to ``size - 1``; all of them call the same methods in the same order.

    Arrays are contiguous, on the host for groups of processes of one machine. Results do not depend
    on who comes first: sums are formed in the order of ranks.

    Every method raises :class:`~quire.core.errors.RankDeadError` when a rank has died or does not
    come in time.

    Attributes:
        rank: Of this process.
        size: Ranks.
        name: Of the transport, such as ``shared memory``.
        counts: What this rank has asked for.
    """

    rank: int
    size: int
    name: str
    counts: CollectiveCounts

    def all_reduce(self, x: Array) -> Array:
        """Replace float32 ``x``, of any shape, by the sum of all ranks' in their order."""
        ...

    def all_gather_columns(self, part: Array, widths: Sequence[int], out: Array) -> Array:
        """Lay all ranks' columns next to each other.

        Args:
            part: (T, widths[rank]) of this rank, float32.
            widths: Of all ranks; 0 is allowed.
            out: (T, sum(widths)), written and returned; not ``part``.
        """
        ...

    def gather_columns(
        self, part: Array, widths: Sequence[int], out: Array | None, root: int = 0
    ) -> Array | None:
        """Do the same for one rank alone: ``out`` is None for, and returned as, all others'."""
        ...

    def all_to_all(self, parts: Sequence[Array], out: Sequence[Array]) -> Sequence[Array]:
        """Send ``parts[i]`` to rank i and get rank i's as ``out[i]``, any sizes, float32 or int32.

        Both sides know the sizes beforehand: ``out[i]`` has that of what rank i sends.
        """
        ...

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """Replace ``x`` by that of ``root``."""
        ...

    def any(self, flag: bool) -> bool:
        """Return whether it is true for any rank."""
        ...

    def send(self, x: Array, rank: int) -> None:
        """Hand ``x`` to one rank, which calls :meth:`recv`; may return before it has."""
        ...

    def recv(self, x: Array, rank: int) -> Array:
        """Write to ``x`` what a rank sends; messages of one rank come in their order."""
        ...

    def barrier(self) -> None:
        """Return when all ranks are here."""
        ...

    def close(self) -> None:
        """Let go of what it holds; no call follows."""
        ...
