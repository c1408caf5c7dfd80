"""What the driver tells workers on other machines: messages through a connection to each."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.errors import RankDeadError

_LENGTH, _RANK = struct.Struct("<Q"), struct.Struct("<I")
_KEY = "commands"
#: A machine that is gone sends nothing: it is asked after this time, that often, that many times.
_IDLE_SECONDS, _ASK_SECONDS, _ASKS = 10, 3, 3


class SocketCommands:
    """A rank's end; see :class:`quire.distributed.command_ring.CommandChannel`.

    Args:
        address: Of rank 0.
        rank, size: Of this process, and of the whole.
        tell, ask: Write and read a key that all ranks see; ``ask`` waits for it.
        silence: Seconds until a rank that does not come, or reads nothing, counts as lost.

    Raises:
        OSError: A rank does not come in time.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        size: int,
        tell: Callable[[str, str], Any],
        ask: Callable[[str], bytes],
        silence: float,
    ) -> None:
        self._connections: dict[int, socket.socket] = {}
        if rank == 0:
            self._accept(address, size, tell, silence)
        else:
            port, token = ask(_KEY).decode().split()
            connection = socket.create_connection((address, int(port)), silence)
            connection.sendall(token.encode() + _RANK.pack(rank))
            self._keep(0, connection, None)

    @property
    def descriptors(self) -> dict[int, int]:
        """Return the ranks by descriptor: it becomes readable for the driver when one is gone."""
        return {one.fileno(): rank for rank, one in self._connections.items()}

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        for rank, connection in self._connections.items():
            try:
                connection.sendall(_LENGTH.pack(length))
                for buffer in buffers:
                    connection.sendall(buffer)
            except OSError as error:
                raise _lost(rank, error) from None

    def receive(self) -> bytearray:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def close(self) -> None:
        """End all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _read(self, length: int) -> bytearray:
        found, count = bytearray(length), 0
        view = memoryview(found)
        while count < length:
            try:
                got = self._connections[0].recv_into(view[count:])
            except OSError as error:
                raise _lost(0, error) from None
            if not got:
                raise _lost(0, "it has closed the connection")
            count += got
        return found

    def _accept(
        self, address: str, size: int, tell: Callable[[str, str], Any], silence: float
    ) -> None:
        """Let every rank connect; whoever else comes does not know the word."""
        token = secrets.token_hex(16)
        with socket.create_server((address, 0), backlog=size) as server:
            server.settimeout(silence)
            tell(_KEY, f"{server.getsockname()[1]} {token}")
            while len(self._connections) < size - 1:
                connection, _ = server.accept()
                connection.settimeout(silence)
                greeting = connection.recv(len(token) + _RANK.size, socket.MSG_WAITALL)
                if not secrets.compare_digest(greeting[: len(token)], token.encode()):
                    connection.close()
                    continue
                (rank,) = _RANK.unpack(greeting[len(token) :])
                self._keep(rank, connection, silence)

    def _keep(self, rank: int, connection: socket.socket, limit: float | None) -> None:
        connection.settimeout(limit)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", _IDLE_SECONDS),
            ("TCP_KEEPINTVL", _ASK_SECONDS),
            ("TCP_KEEPCNT", _ASKS),
        ):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connections[rank] = connection


def _lost(rank: int, reason: object) -> RankDeadError:
    return RankDeadError(f"[group] rank {rank} is lost: {reason}.")
