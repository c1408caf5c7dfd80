"""Connections between processes: messages' frames, which are let in, how a lost one is noticed."""

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

from quire.core.log import get_logger

log = get_logger(__name__)

Message = TypeVar("Message")
#: Before each message: its bytes.
LENGTH_BYTES = 4
#: Of what one that has connected says first.
_MAX_GREETING_BYTES = 4096
#: What it is asked then begins with this, and its answer proves that it has the key.
_MARK, _CHALLENGE_BYTES, _PROOF_BYTES = b"quire key", 24, 32
#: How long it may take to say that.
GREETING_SECONDS = 5.0
#: Of those that have not said it yet; the oldest goes where one more comes.
_MAX_WAITING = 64
#: After one that could not be let in.
_PAUSE_SECONDS = 0.1
#: A machine that is gone sends nothing: it is asked after this time, that often, that many times.
_IDLE_SECONDS, _PROBE_SECONDS, _NUM_PROBES = 5, 2, 5
#: After which one that answers nothing at all, not even by its kernel, is gone.
GONE_SECONDS = _IDLE_SECONDS + _PROBE_SECONDS * _NUM_PROBES


def framed(data: bytes) -> bytes:
    """Return a message as it is sent."""
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def exactly(connection: socket.socket, count: int) -> bytes:
    """Return the next bytes of a connection.

    Raises:
        EOFError: The other side is gone.
        OSError: Likewise, or it does not send in time.
    """
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the other side is gone")
        data += part
    return bytes(data)


def decoded(decode: Callable[[Any], Message], data: bytes | bytearray | memoryview) -> Message:
    """Return the message that a peer has sent: all such bytes are read here.

    Args:
        decode: A decoder of msgspec, which may raise more than ``DecodeError``: text that is no
            UTF-8 and deep nesting have errors of their own.
        data: The peer's bytes.

    Raises:
        ConnectionError: They are no such message.
    """
    try:
        return decode(data)
    except Exception as error:
        raise ConnectionError(f"no message that is known here was sent: {error}") from error


def readable(connections: Iterable[socket.socket], seconds: float) -> list[socket.socket]:
    """Wait until some can be read or have ended, and return these; any number of descriptors.

    Args:
        connections: All are open.
        seconds: The longest wait.
    """
    by_descriptor = {one.fileno(): one for one in connections}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(1000 * seconds)]


def introduce(connection: socket.socket, key: str, greeting: bytes) -> None:
    """Say to a :class:`Door` who this is, and prove that it has the key, which stays here.

    Raises:
        EOFError, OSError: It is not there, or does not answer in time.
    """
    connection.sendall(framed(greeting))
    challenge = exactly(connection, _CHALLENGE_BYTES)
    if not challenge.startswith(_MARK):
        raise ConnectionError(f"a message that is not of Quire: {challenge!r}")
    connection.sendall(_proof(key, challenge, greeting))


def _proof(key: str, challenge: bytes, greeting: bytes) -> bytes:
    return hmac.digest(os.fsencode(key), challenge + greeting, "sha256")


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel find out when the other machine is gone, and send small messages at once."""
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
    """One that has connected: until when it may speak, what it has said, what it is asked."""

    end: float
    said: bytearray
    challenge: bytes


class Door:
    """A port that anybody may reach; who connects says one short message, and proves its key.

    Nothing of the message is read before: a proof belongs to the challenge, so that one that was
    overheard opens no door. Those that say nothing, little by little, or too much hold up no other.

    Args:
        listener: Owned by this object from now on.
        key: Key that peers must have.
        seconds: That one may take to say its message.
    """

    def __init__(
        self, listener: socket.socket, key: str, seconds: float = GREETING_SECONDS
    ) -> None:
        self._listener, self._key, self._seconds = listener, key, seconds
        listener.setblocking(False)  # one may be gone before it is let in
        self._waiting: dict[socket.socket, _Stranger] = {}

    def __enter__(self) -> Door:
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
        """Where it is."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def greet(self, seconds: float) -> list[tuple[socket.socket, bytes | None]]:
        """Wait at most that long, and return who has said a whole message.

        Returns:
            Connections with their messages, and with None where the key is another one.
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
        """Close the port, and send away those that have said nothing."""
        self._listener.close()
        for one in self._waiting:
            one.close()
        self._waiting.clear()

    def _let_in(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it is gone already
            return
        except OSError:  # no descriptor is free, and it can still be read
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
        """Take what it says, and ask for the proof; return whether all of it is there."""
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
            with suppress(OSError):  # that it is gone is heard
                connection.send(challenge)
        if len(said) < whole:
            return False
        connection.setblocking(True)
        return True

    def _proven(self, stranger: _Stranger) -> bytes | None:
        """Return the message of one that has the key."""
        said = bytes(stranger.said)
        greeting, proof = said[LENGTH_BYTES:-_PROOF_BYTES], said[-_PROOF_BYTES:]
        is_own = hmac.compare_digest(proof, _proof(self._key, stranger.challenge, greeting))
        return greeting if is_own else None

    def _send_away(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        with suppress(OSError):  # nobody is there any more
            host = connection.getpeername()[0]
            log.warning("[port] %s connected and did not say who it is", host)
        connection.close()
