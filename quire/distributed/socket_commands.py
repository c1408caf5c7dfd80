"""The driver's messages to workers on other machines, through a connection to each."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.errors import RankDeadError
from quire.system.connections import HandshakeListener, introduce, keep_alive

_LENGTH, _RANK = struct.Struct("<Q"), struct.Struct("<I")
_KEY = "commands"
#: Interval at which a driver checks whether the time is over.
_LOOK_SECONDS = 1.0


class SocketCommands:
    """A rank's end; see :class:`quire.distributed.command_ring.CommandChannel`.

    Args:
        address: Address of rank 0.
        rank, size: Rank of this process, and number of ranks.
        tell, ask: Calls that write and read a key that all ranks see; ``ask`` waits for it.
        silence: Seconds until a rank that does not connect, or reads nothing, counts as lost.

    Raises:
        OSError: A rank does not connect in time.
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
            introduce(connection, token, _RANK.pack(rank))
            self._keep(0, connection, None)

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
        """Wait until every rank has connected; other peers do not know the token."""
        token = secrets.token_hex(16)
        end = time.monotonic() + silence
        with HandshakeListener(socket.create_server((address, 0)), token) as door:
            tell(_KEY, f"{door.address[1]} {token}")
            while len(self._connections) < size - 1:
                if time.monotonic() > end:
                    raise TimeoutError("a rank did not connect")
                for connection, said in door.greet(_LOOK_SECONDS):
                    if said is None:
                        connection.close()
                        continue
                    (rank,) = _RANK.unpack(said)
                    self._keep(rank, connection, silence)

    def _keep(self, rank: int, connection: socket.socket, limit: float | None) -> None:
        connection.settimeout(limit)
        keep_alive(connection)
        self._connections[rank] = connection


def _lost(rank: int, reason: object) -> RankDeadError:
    return RankDeadError(f"[group] rank {rank} is lost: {reason}.")
