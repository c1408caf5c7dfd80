"""Connections between processes: messages' frames, who may come in, how a lost one is noticed."""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from types import TracebackType

from quire.core.log import get_logger

log = get_logger(__name__)

#: Before each message: its bytes.
LENGTH_BYTES = 4
#: Of what one that has connected says first.
_MAX_GREETING_BYTES = 4096
#: How long it may take to say that.
GREETING_SECONDS = 5.0
#: Of those that have not said it yet; the oldest goes where one more comes.
_MAX_WAITING = 64
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


class Door:
    """A port that anybody may reach; who connects says one short message first.

    Nobody is waited for: those that say nothing, little by little, or too much hold up no other.

    Args:
        listener: Owned by this object from now on.
        seconds: That one may take to say its message.
    """

    def __init__(self, listener: socket.socket, seconds: float = GREETING_SECONDS) -> None:
        self._listener, self._seconds = listener, seconds
        listener.setblocking(False)  # one may be gone before it is let in
        self._waiting: dict[socket.socket, tuple[float, bytearray]] = {}

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

    def greet(self, seconds: float) -> list[tuple[socket.socket, bytes]]:
        """Wait at most that long, and return who has said a whole message, and the message."""
        found = []
        for one in select.select([self._listener, *self._waiting], [], [], seconds)[0]:
            if one is self._listener:
                self._let_in()
            elif one in self._waiting and (said := self._hear(one)) is not None:
                found.append((one, said))
        now = time.monotonic()
        for late in [one for one, (end, _) in self._waiting.items() if end < now]:
            self._send_away(late)
        return found

    def close(self) -> None:
        """Close the port, and send away those that have said nothing."""
        self._listener.close()
        for one in self._waiting:
            one.close()
        self._waiting.clear()

    def _let_in(self) -> None:
        with suppress(OSError):  # it is gone already
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            if len(self._waiting) == _MAX_WAITING:
                self._send_away(next(iter(self._waiting)))
            self._waiting[connection] = (time.monotonic() + self._seconds, bytearray())

    def _hear(self, connection: socket.socket) -> bytes | None:
        """Return its message once that is whole."""
        _, said = self._waiting[connection]
        try:
            part = connection.recv(_MAX_GREETING_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        said += part
        size = LENGTH_BYTES + int.from_bytes(said[:LENGTH_BYTES], "little")
        if len(said) == size:
            del self._waiting[connection]
            connection.setblocking(True)
            return bytes(said[LENGTH_BYTES:])
        is_begun = len(said) < LENGTH_BYTES or len(said) < size <= _MAX_GREETING_BYTES
        if not part or not is_begun:
            self._send_away(connection)
        return None

    def _send_away(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        with suppress(OSError):  # nobody is there any more
            host = connection.getpeername()[0]
            log.warning("[port] %s connected and did not say who it is", host)
        connection.close()
