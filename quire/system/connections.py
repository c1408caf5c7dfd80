"""Connections between processes: frames of messages, admission by a key, and keep-alive."""

from __future__ import annotations

import hmac
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from quire.system.log import get_logger

log = get_logger(__name__)

Message = TypeVar("Message")
#: Bytes of the length that precedes each message.
LENGTH_BYTES = 4
#: Bytes of a peer's first message with its proof, at most.
_MAX_GREETING_BYTES = 4096
#: The beginning of a challenge, the bytes of a challenge, and those of the proof that answers it.
_MARK, _CHALLENGE_BYTES, _PROOF_BYTES = b"quire key", 24, 32
#: Seconds that a peer may take for its first message.
GREETING_SECONDS = 5.0
#: Peers that have not sent it yet, at most; one more takes the place of the oldest.
_MAX_WAITING = 64
#: Pause after a connection that could not be accepted.
_PAUSE_SECONDS = 0.1
#: Seconds until the kernel probes a silent machine, seconds between probes, and their number.
_IDLE_SECONDS, _PROBE_SECONDS, _NUM_PROBES = 5, 2, 5
#: Seconds after which a machine whose kernel does not answer either counts as lost.
GONE_SECONDS = _IDLE_SECONDS + _PROBE_SECONDS * _NUM_PROBES


def framed(data: bytes) -> bytes:
    """Return a message with its length in front."""
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def exactly(connection: socket.socket, count: int) -> bytes:
    """Return the next bytes of a connection.

    Raises:
        EOFError: The other side has closed the connection.
        OSError: The connection is lost, or the other side does not send in time.
    """
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the other side is gone")
        data += part
    return bytes(data)


def decoded(decode: Callable[[Any], Message], data: bytes | bytearray | memoryview) -> Message:
    """Decode the message that a peer has sent: all such bytes are read here.

    Args:
        decode: A decoder of msgspec, which may raise more than ``DecodeError``: invalid UTF-8 and
            deep nesting have errors of their own.
        data: The peer's bytes.

    Raises:
        ConnectionError: The bytes are no message that the decoder knows.
    """
    try:
        return decode(data)
    except Exception as error:
        raise ConnectionError(f"a message of no known kind was sent: {error}") from error


def readable(connections: Iterable[socket.socket], seconds: float) -> list[socket.socket]:
    """Wait until some connections can be read or have ended, and return these.

    The number of descriptors is not limited.

    Args:
        connections: Open connections.
        seconds: The longest wait.
    """
    by_descriptor = {one.fileno(): one for one in connections}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(1000 * seconds)]


def introduce(connection: socket.socket, key: str, greeting: bytes) -> None:
    """Send a greeting to a :class:`HandshakeListener`, and prove that this peer has the key.

    Raises:
        EOFError, OSError: The peer is gone, does not answer in time, or is not of Quire.
    """
    connection.sendall(framed(greeting))
    challenge = exactly(connection, _CHALLENGE_BYTES)
    if not challenge.startswith(_MARK):
        raise ConnectionError(f"a message that is not of Quire: {challenge!r}")
    connection.sendall(_proof(key, challenge, greeting))


def _proof(key: str, challenge: bytes, greeting: bytes) -> bytes:
    return hmac.digest(os.fsencode(key), challenge + greeting, "sha256")


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel notice a lost machine, and send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _NUM_PROBES),
    ):
        if hasattr(socket, name):
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Stranger(NamedTuple):
    """A peer that has connected: the end of its time, the bytes it has sent, and its challenge."""

    end: float
    said: bytearray
    challenge: bytes


class HandshakeListener:
    """A port that any peer may reach; each sends one short message, and proves that it has the key.

    The message is read only once the proof is checked. A proof belongs to one challenge, so that an
    overheard one admits no peer. A peer that sends nothing, slowly or too much delays no other.

    Args:
        listener: Listening socket, owned by this object from now on.
        key: Key that peers must have.
        seconds: Seconds that a peer may take for its message.
    """

    def __init__(
        self, listener: socket.socket, key: str, seconds: float = GREETING_SECONDS
    ) -> None:
        self._listener, self._key, self._seconds = listener, key, seconds
        listener.setblocking(False)  # a peer may be gone before it is accepted
        self._waiting: dict[socket.socket, _Stranger] = {}

    def __enter__(self) -> HandshakeListener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def greet(self, seconds: float) -> list[tuple[socket.socket, bytes | None]]:
        """Wait at most ``seconds``, and return the peers that have sent a whole message.

        Returns:
            Connections with their messages, or with None where the peer has another key.
        """
        found: list[tuple[socket.socket, bytes | None]] = []
        for one in readable([self._listener, *self._waiting], seconds):
            if one is self._listener:
                self._let_in()
            elif one in self._waiting and self._hear(one):
                found.append((one, self._proven(self._waiting.pop(one))))
        now = time.monotonic()
        for late in [one for one, stranger in self._waiting.items() if stranger.end < now]:
            self._send_away(late)
        return found

    def close(self) -> None:
        """Close the port, and disconnect peers that have not sent their message."""
        self._listener.close()
        for one in self._waiting:
            one.close()
        self._waiting.clear()

    def _let_in(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # the peer is gone already
            return
        except OSError:  # no descriptor is free, and the peer keeps waiting
            time.sleep(_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        if len(self._waiting) == _MAX_WAITING:
            self._send_away(next(iter(self._waiting)))
        challenge = _MARK + secrets.token_bytes(_CHALLENGE_BYTES - len(_MARK))
        self._waiting[connection] = _Stranger(
            time.monotonic() + self._seconds, bytearray(), challenge
        )

    def _hear(self, connection: socket.socket) -> bool:
        """Read what a peer sends, and ask for the proof; return whether all has arrived."""
        _, said, challenge = self._waiting[connection]
        try:
            part = connection.recv(_MAX_GREETING_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        said += part
        size = LENGTH_BYTES + int.from_bytes(said[:LENGTH_BYTES], "little")
        whole = size + _PROOF_BYTES
        is_begun = len(said) < LENGTH_BYTES or len(said) <= whole <= _MAX_GREETING_BYTES
        if not part or not is_begun:
            self._send_away(connection)
            return False
        if len(said) == size:
            with suppress(OSError):  # the next read finds that the peer is gone
                connection.send(challenge)
        if len(said) < whole:
            return False
        connection.setblocking(True)
        return True

    def _proven(self, stranger: _Stranger) -> bytes | None:
        """Return the message of a peer that has the key; None for another key."""
        said = bytes(stranger.said)
        greeting, proof = said[LENGTH_BYTES:-_PROOF_BYTES], said[-_PROOF_BYTES:]
        is_own = hmac.compare_digest(proof, _proof(self._key, stranger.challenge, greeting))
        return greeting if is_own else None

    def _send_away(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        with suppress(OSError):  # the peer is gone
            host = connection.getpeername()[0]
            log.warning("[port] %s connected and did not say who it is", host)
        connection.close()
