"""Ranks on several machines: collectives of messages by torch.distributed.

Every collective is made of messages between two ranks, so that parts may have any size, sums are
formed in the order of ranks, and an error names the rank whose message failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

from quire.core.errors import ConfigError, RankDeadError
from quire.distributed.group import CollectiveCounts
from quire.distributed.socket_commands import SocketCommands
from quire.kernels.batch.forward_batch import Array

#: Bytes of messages that their ranks have not received yet, at most; more have to wait.
_MOST_SENT_BYTES = 256 << 20
_LOST_KEY = "lost"


class TorchWorld:
    """One rank's connections to all others; a process has one world in its life.

    Args:
        address, port: Address and port that rank 0 listens on.
        rank, size: Rank of this process, and number of ranks.
        backend: ``gloo`` for arrays of the host, ``nccl`` for those of CUDA devices.
        silence: Seconds until a rank that does not connect or answer counts as lost.

    Raises:
        ConfigError: torch is not installed, or lacks the backend.
        RankDeadError: A rank does not connect in time.
    """

    def __init__(
        self,
        address: str,
        port: int,
        rank: int,
        size: int,
        *,
        backend: str = "gloo",
        silence: float = 300.0,
    ) -> None:
        self._torch = _import_torch()
        self.rank, self.size, self.backend = rank, size, backend
        self._dist: Any = self._torch.distributed
        self._given: list[tuple[int, int, Any]] = []  # rank, bytes and message
        self._is_lost = False
        if not self._dist.is_available() or not self._dist.is_backend_available(backend):
            raise ConfigError(f"[distributed] torch must have {backend}; it does not.")
        limit = timedelta(seconds=silence)
        try:
            self._store = self._dist.TCPStore(address, port, size, rank == 0, limit)
            self._dist.init_process_group(
                backend, store=self._store, rank=rank, world_size=size, timeout=limit
            )
            self._commands = SocketCommands(
                address, rank, size, self._store.set, self._store.get, silence
            )
        except (RuntimeError, OSError) as error:
            raise RankDeadError(
                f"[distributed] all {size} ranks must connect to {address}:{port} within "
                f"{silence:.0f} s; rank {rank} got: {_first_line(error)}."
            ) from None

    def group(self, ranks: Sequence[int] | None = None) -> TorchGroup:
        """Return the group of all ranks, or that of some; this rank is one of them."""
        return TorchGroup(self, list(range(self.size)) if ranks is None else list(ranks))

    def commands(self) -> SocketCommands:
        """Return this rank's end of the channel for rank 0's commands to all others."""
        return self._commands

    def fail(self, rank: int, reason: str) -> None:
        """Tell all ranks which rank is lost; they learn it when a wait for others fails."""
        self._is_lost = True
        with suppress(RuntimeError):
            if not self._store.check([_LOST_KEY]):
                self._store.set(_LOST_KEY, f"[group] rank {rank} is lost: {reason}.")

    def check(self) -> None:
        """Raise :class:`~quire.core.errors.RankDeadError` where :meth:`fail` was called."""
        with suppress(RuntimeError):
            if self._store.check([_LOST_KEY]):
                raise RankDeadError(self._store.get(_LOST_KEY).decode())

    def close(self) -> None:
        """Close all connections."""
        if not self._is_lost:
            with suppress(RankDeadError):
                self.finish_given()
        self._given.clear()  # messages keep connections open
        self._commands.close()
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def tell(self, key: str, text: str) -> None:
        """Set a key that all ranks can read."""
        try:
            self._store.set(key, text)
        except RuntimeError as error:
            self._lose(0, error)

    def ask(self, key: str) -> str:
        """Wait until a rank has set a key, and return its text."""
        try:
            return str(self._store.get(key).decode())
        except RuntimeError as error:
            self._lose(0, error)

    def exchange(self, key: str, text: str, ranks: Sequence[int]) -> list[str]:
        """Tell a text and return the texts of ``ranks``, this one among them."""
        self.tell(f"{key}/{self.rank}", text)
        return [self.ask(f"{key}/{rank}") for rank in ranks]

    def tensor(self, x: Array) -> Any:
        """Return an array as a tensor, of the same memory unless that is read-only."""
        if not isinstance(x, np.ndarray):
            return x
        return self._torch.from_numpy(x if x.flags.writeable else x.copy())

    def number(self, value: bool) -> Any:
        """Return a tensor of one byte where messages of this backend begin."""
        device = "cuda" if self.backend == "nccl" else "cpu"
        return self._torch.tensor([value], dtype=self._torch.uint8, device=device)

    def exchange_copies(self, sends: dict[int, Any], receives: dict[int, Any]) -> None:
        """Send tensors that stay as they are, by rank, and take what these ranks send.

        A wait for a message to a lost rank may never end: gloo does not report a message that is
        half sent (``signalException`` in ``tcp/pair.cc`` leaves it out). So only messages from
        ranks are waited for: a rank that sends has received all that was sent to it before.
        """
        received, sent = self.start(sends, receives, _COLLECTIVES)
        self.finish(received)
        answered = {rank for rank, _ in received}
        self._given = [one for one in self._given if one[0] not in answered]
        self._given += [(rank, sends[rank].nbytes, message) for rank, message in sent]
        if sum(num_bytes for _, num_bytes, _ in self._given) > _MOST_SENT_BYTES:
            self.finish_given()

    def finish_given(self) -> None:
        """Wait until all messages of collectives have left."""
        given, self._given = self._given, []
        self.finish([(rank, message) for rank, _, message in given])

    def start(
        self, sends: dict[int, Any], receives: dict[int, Any], tag: int
    ) -> tuple[list[Any], list[Any]]:
        """Start messages of tensors, by rank; tensors without elements are not sent.

        Returns:
            ``(rank, message)`` of messages to receive, and of messages sent.
        """
        calls = ((self._dist.isend, sends), (self._dist.irecv, receives))
        if self.backend == "nccl":
            return self._start_together(calls), []
        sent, received = (
            [
                (rank, self._start_one(call, tensor, rank, tag))
                for rank, tensor in tensors.items()
                if tensor.numel()
            ]
            for call, tensors in calls
        )
        return received, sent

    def _start_one(self, call: Any, tensor: Any, rank: int, tag: int) -> Any:
        try:
            return call(tensor, rank, tag=tag)
        except RuntimeError as error:
            self._lose(rank, error)

    def _start_together(self, calls: Iterable[tuple[Any, dict[int, Any]]]) -> list[Any]:
        """Start messages as one work of NCCL: alone, each would wait for its other end."""
        operations = [
            self._dist.P2POp(call, tensor, rank)
            for call, tensors in calls
            for rank, tensor in tensors.items()
            if tensor.numel()
        ]
        try:
            works = self._dist.batch_isend_irecv(operations) if operations else []
        except RuntimeError as error:
            self._lose(operations[0].peer, error)
        return [(operations[0].peer, work) for work in works]

    def finish(self, messages: Sequence[Any]) -> None:
        """Wait until messages are received or sent."""
        for rank, work in messages:
            try:
                work.wait()
            except RuntimeError as error:
                self._lose(rank, error)

    def _lose(self, rank: int, error: RuntimeError) -> NoReturn:
        """Raise an error that names the rank lost first: others end because of it."""
        self._is_lost = True
        self.check()
        self.fail(rank, _first_line(error))
        raise RankDeadError(f"[group] rank {rank} is lost: {_first_line(error)}.") from None


class TorchGroup:
    """Some ranks of a world; see :class:`quire.distributed.group.Group`."""

    def __init__(self, world: TorchWorld, ranks: list[int]) -> None:
        self._world, self._ranks = world, ranks
        self.rank, self.size, self.name = ranks.index(world.rank), len(ranks), world.backend
        self.counts = CollectiveCounts()
        self._sent: deque[tuple[int, Any, list[Any]]] = deque()
        self._sent_bytes = 0

    def _exchange(self, sends: Sequence[Array], receives: Sequence[Array]) -> None:
        """Send each other rank an array and receive its array."""
        tensor, others = self._world.tensor, [i for i in range(self.size) if i != self.rank]
        copies = {id(sends[i]): sends[i] for i in others}  # most are the same
        copies = {key: tensor(x).clone() for key, x in copies.items()}
        self._world.exchange_copies(
            {self._ranks[i]: copies[id(sends[i])] for i in others},
            {self._ranks[i]: tensor(receives[i]) for i in others},
        )

    def _gather(self, x: Array) -> list[Array]:
        """Return every rank's array of the same shape."""
        parts = [x if i == self.rank else _like(x) for i in range(self.size)]
        self._exchange([x] * self.size, parts)
        return parts

    def all_reduce(self, x: Array) -> Array:
        self.counts.add("all_reduce", x.nbytes)
        first, *others = self._gather(x)
        total = first + 0 if others else first
        for other in others:
            total += other
        x[...] = total
        return x

    def all_gather_columns(self, part: Array, widths: Sequence[int], out: Array) -> Array:
        self.counts.add("all_gather_columns", out.nbytes)
        parts = [_like(part, (len(part), width)) for width in widths]
        parts[self.rank] = part
        self._exchange([part] * self.size, parts)
        _lay_columns(parts, out)
        return out

    def gather_columns(
        self, part: Array, widths: Sequence[int], out: Array | None, root: int = 0
    ) -> Array | None:
        self.counts.add("gather_columns", len(part) * sum(widths) * part.itemsize)
        nothing = _like(part, (0,))
        sends = [part if i == root else nothing for i in range(self.size)]
        if out is None:
            self._exchange(sends, [nothing] * self.size)
            return None
        parts = [_like(part, (len(part), width)) for width in widths]
        parts[self.rank] = part
        self._exchange(sends, parts)
        _lay_columns(parts, out)
        return out

    def all_to_all(self, parts: Sequence[Array], out: Sequence[Array]) -> Sequence[Array]:
        self.counts.add("all_to_all", sum(part.nbytes for part in parts))
        self._exchange(parts, out)
        out[self.rank][...] = parts[self.rank]
        return out

    def any(self, flag: bool) -> bool:
        self.counts.add("any", 1)
        return any(bool(found[0]) for found in self._gather(self._world.number(flag)))

    def send(self, x: Array, rank: int) -> None:
        self.counts.add("send", x.nbytes)
        while self._sent and self._sent_bytes + x.nbytes > _MOST_SENT_BYTES:
            self._finish_oldest()
        while self._sent and all(work.is_completed() for _, work in self._sent[0][2]):
            self._finish_oldest()
        copied = self._world.tensor(x).clone()
        _, sent = self._world.start({self._ranks[rank]: copied}, {}, _MESSAGES)
        self._sent.append((x.nbytes, copied, sent))
        self._sent_bytes += x.nbytes

    def recv(self, x: Array, rank: int) -> Array:
        target = {self._ranks[rank]: self._world.tensor(x)}
        received, _ = self._world.start({}, target, _MESSAGES)
        self._world.finish(received)
        return x

    def close(self) -> None:
        while self._sent:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        num_bytes, _, works = self._sent.popleft()
        self._sent_bytes -= num_bytes
        self._world.finish(works)


#: Tags of messages: of collectives, and of :meth:`TorchGroup.send`.
_COLLECTIVES, _MESSAGES = 0, 1


def _like(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Return a new array of the same kind."""
    shape = tuple(x.shape) if shape is None else shape
    return np.empty(shape, x.dtype) if isinstance(x, np.ndarray) else x.new_empty(shape)


def _lay_columns(parts: Sequence[Array], out: Array) -> None:
    first = 0
    for part in parts:
        out[:, first : first + part.shape[1]] = part
        first += part.shape[1]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _import_torch() -> Any:
    try:
        import torch.distributed
    except ImportError:
        raise ConfigError(
            "[distributed] ranks on several machines need torch; it is not installed. "
            "Run: pip install 'quire[distributed]'."
        ) from None
    return torch
