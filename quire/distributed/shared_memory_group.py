"""Ranks as processes of one machine: collectives in native code over memory that they share.

The memory has no name: the driver creates it, a worker gets its descriptor, and the system frees it
with the last process that has it. Its pages take memory once they are written to.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.errors import ConfigError, RankDeadError
from quire.distributed.command_ring import CommandRing
from quire.distributed.group import CollectiveCounts
from quire.distributed.segment_layout import TEXT_BYTES, SegmentLayout, SegmentSizes
from quire.kernels.batch.forward_batch import Array
from quire.kernels.cpu.native import native

native.raise_lost_ranks_as(RankDeadError)

#: Seconds that a rank spins for others before it sleeps: ranks end their shards of a layer within
#: that time of each other, and to wake a thread costs tens of microseconds.
SPIN_SECONDS = 100e-6
#: Seconds that others wait for a call of a live rank, which may compute a long prompt.
SILENCE_SECONDS = 300.0


class SharedMemoryGroup:
    """One rank; see :class:`quire.distributed.group.Group`. Created by a :class:`SharedMemory`.

    CPU: native/runtime/shared_group.cpp.
    """

    name = "shared memory"

    def __init__(
        self, group: Any, rank: int, size: int, open_stream: Callable[[int, int], Any]
    ) -> None:
        self.rank, self.size = rank, size
        self.counts = CollectiveCounts()
        self._group, self._open_stream = group, open_stream
        self._streams: dict[tuple[int, int], Any] = {}

    def all_reduce(self, x: Array) -> Array:
        self.counts.add("all_reduce", x.nbytes)
        self._group.all_reduce(x)
        return x

    def all_gather_columns(self, part: Array, widths: Sequence[int], out: Array) -> Array:
        self.counts.add("all_gather_columns", out.nbytes)
        self._gather(part, widths, out, -1)
        return out

    def gather_columns(
        self, part: Array, widths: Sequence[int], out: Array | None, root: int = 0
    ) -> Array | None:
        self.counts.add("gather_columns", len(part) * sum(widths) * part.itemsize)
        self._gather(part, widths, out, root)
        return out

    def _gather(self, part: Array, widths: Sequence[int], out: Array | None, root: int) -> None:
        size = part.itemsize
        self._group.gather(part, [width * size for width in widths], len(part), out, root)

    def all_to_all(self, parts: Sequence[Array], out: Sequence[Array]) -> Sequence[Array]:
        self.counts.add("all_to_all", sum(part.nbytes for part in parts))
        self._group.all_to_all(parts, out)
        return out

    def any(self, flag: bool) -> bool:
        self.counts.add("any", 1)
        return bool(self._group.any(flag))

    def send(self, x: Array, rank: int) -> None:
        self.counts.add("send", x.nbytes)
        self._stream(self.rank, rank).write([x])

    def recv(self, x: Array, rank: int) -> Array:
        self._stream(rank, self.rank).read_into(x)
        return x

    def close(self) -> None:
        self._streams.clear()
        self._group = None

    def _stream(self, sender: int, receiver: int) -> Any:
        key = (sender, receiver)
        if key not in self._streams:
            self._streams[key] = self._open_stream(*key)
        return self._streams[key]


class SharedMemory:
    """One rank's view of the memory; :meth:`create` in the driver, :meth:`attach` in a worker.

    Args:
        descriptor: Descriptor of the memory; owned by this object from now on.
        rank: Rank of this process.
        layout: Layout of the memory.
        silence: Seconds until a rank without a sign of life counts as lost.
    """

    def __init__(
        self,
        descriptor: int,
        rank: int,
        layout: SegmentLayout,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.descriptor, self.rank, self.layout = descriptor, rank, layout
        self._native: Any = native.SharedSegment(descriptor, rank, layout.spin, silence)

    @classmethod
    def create(
        cls,
        size: int,
        groups: Sequence[Sequence[int]] = (),
        sizes: SegmentSizes | None = None,
        *,
        rank: int = 0,
        silence: float = SILENCE_SECONDS,
    ) -> SharedMemory:
        """Create the memory; this process is ``rank``, and may use the cores of all ranks.

        Args:
            size: Number of ranks.
            groups: Ranks of each group besides the one of all ranks.
            sizes: Bytes of the parts.
            rank: Rank of this process.
            silence: The same as for the class.

        Raises:
            ConfigError: The system has no such memory, or there are too many ranks.
        """
        if not sys.platform.startswith("linux"):
            raise ConfigError(
                f"[shared segment] memory without a name needs Linux; got {sys.platform}. "
                "Use one process."
            )
        if size > native.max_ranks:
            raise ConfigError(
                f"[shared segment] ranks of one machine must be <= {native.max_ranks}; got {size}."
            )
        # A rank that spins where ranks outnumber cores keeps the rank it waits for from running.
        ranks = {one for group in groups for one in group} or set(range(size))
        spin = SPIN_SECONDS if len(ranks) <= len(os.sched_getaffinity(0)) else 0.0
        layout = SegmentLayout(size, groups, sizes, spin)
        descriptor = os.memfd_create("quire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, layout.num_bytes)
        # A process that cut the memory short would cause SIGBUS in the others.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        os.pwrite(descriptor, layout.encode(), native.shared_segment_header_bytes)
        return cls(descriptor, rank, layout, silence)

    @classmethod
    def attach(cls, descriptor: int, rank: int, silence: float = SILENCE_SECONDS) -> SharedMemory:
        """Return the view of a rank that was given the descriptor, which stays the caller's."""
        text = os.pread(descriptor, TEXT_BYTES, native.shared_segment_header_bytes)
        return cls(os.dup(descriptor), rank, SegmentLayout.decode(text), silence)

    @classmethod
    def of_process(cls, process: int, descriptor: int, rank: int) -> SharedMemory:
        """Return a rank's view of memory that another process of this machine has open.

        Raises:
            ConfigError: The process may not open it.
        """
        try:
            own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        except OSError as error:
            raise ConfigError(
                f"[shared segment] rank {rank} must be able to open memory of process {process}, "
                f"as ranks of one user and one container are; got: {error.strerror}. Give ranks "
                "that are apart a QUIRE_MACHINE_ID each."
            ) from error
        try:
            return cls.attach(own, rank)
        finally:
            os.close(own)

    def group(self, ranks: Sequence[int] | None = None) -> SharedMemoryGroup:
        """Return the group of all ranks, or the one of ``ranks`` that the layout has."""
        layout, sizes = self.layout, self.layout.sizes
        index = 0 if ranks is None else layout.groups.index(list(ranks))
        members, mailboxes = layout.groups[index], layout.mailboxes[index]
        rank = members.index(self.rank)

        def open_stream(sender: int, receiver: int) -> Any:
            place = (mailboxes[sender, receiver], sizes.mailbox)
            ends = (members[sender], [members[receiver]])
            return native.SharedStream(self._native, *place, *ends, self.rank)

        area = (layout.areas[index], sizes.area)
        group = native.SharedGroup(self._native, *area, members, rank)
        return SharedMemoryGroup(group, rank, len(members), open_stream)

    def commands(self) -> CommandRing:
        """Return this rank's end of the channel for rank 0's commands to all others."""
        readers = list(range(1, self.layout.size))
        place = (self.layout.ring, self.layout.sizes.ring)
        return CommandRing(native.SharedStream(self._native, *place, 0, readers, self.rank))

    def fail(self, rank: int, reason: str) -> None:
        """End all waits of all ranks with an error: ``rank`` is lost. From any thread."""
        self._native.fail(rank, reason)

    def close(self) -> None:
        """Close the descriptor; groups and rings that are still used keep the memory."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
