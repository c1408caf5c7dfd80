"""A WebSocket's connection: the app may finish what runs on it, and refusals have OpenAI's body.

uvicorn's own protocol closes it at once when the server ends, with the answer half sent, refuses
without a body, and logs the query.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, cast

from uvicorn._types import WebSocketEvent
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import ConnectionType, WSConnection, events
from wsproto.connection import ConnectionState
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from quire.server.http.http_errors import ApiError
from quire.server.http.unread_bodies import UNREAD, UnreadBody

#: Received by the app when the server has begun to end. It is to close the connection soon.
SHUTDOWN = "quire.shutdown"
#: For the client's half of the closing handshake; a client that is gone never sends it.
CLOSE_SECONDS = 2.0
#: Code of a close: the server has too much to do.
TRY_LATER = 1013
#: Frames that are acted on in one turn of the loop; a read may have 40,000, which take half a
#: second.
FRAMES_AT_ONCE = 64


class _Connection(WSConnection):
    """The frames of a connection, some at a time.

    Attributes:
        has_more: Whether further frames may have arrived.
    """

    has_more = False

    def events(self) -> Generator[events.Event, None, None]:
        """Yield the next frames."""
        self.has_more = False
        for count, event in enumerate(super().events(), start=1):
            self.has_more = count == FRAMES_AT_ONCE
            yield event
            if self.has_more:
                return


class WebSocketProtocol(WSProtocol):
    """uvicorn's protocol; see the module."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.conn: _Connection = _Connection(ConnectionType.SERVER)
        self._message: UnreadBody | None = None  # that comes
        self._unread = ExitStack()  # it is counted till this closes

    @property
    def waits_to_write(self) -> bool:
        """Whether all that is unsent waits for the client alone."""
        return not self.writable.is_set() or self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client; an upgrade that is none is refused."""
        if self.conn.state is not ConnectionState.CONNECTING:
            self._act(data)
            return
        try:
            self.conn.receive_data(data)
        except RemoteProtocolError as error:
            hint = error.event_hint
            given = hint.headers if isinstance(hint, events.RejectConnection) else []
            headers = {name.decode(): value.decode() for name, value in given}
            message = f"[websocket] the upgrade must be valid; {error}."
            self._reject(ApiError(400, message, headers=headers))
        except UnicodeDecodeError:  # wsproto decodes its own headers without a look
            self._reject(ApiError(400, "[websocket] the upgrade's headers must be ASCII."))
        else:
            self.handle_events()

    def _act(self, data: bytes = b"") -> None:
        """Act on some frames; what is not one ends the connection, and so does one after the close.

        Further ones wait for a later turn of the loop and for the app to take messages; nothing is
        read meanwhile.
        """
        try:
            self.conn.receive_data(data)
            self.handle_events()
        except (RemoteProtocolError, LocalProtocolError) as error:
            hint = getattr(error, "event_hint", None)
            if hint is not None:
                with suppress(LocalProtocolError):
                    self.transport.write(self.conn.send(hint))
            self.transport.close()
            return
        if self.conn.has_more:
            self.transport.pause_reading()
        if not self.read_paused:
            self._go_on()

    def _go_on(self) -> None:
        """Act on further frames that have arrived, or read some."""
        if self.conn.has_more:
            self.loop.call_soon(self._act)
        else:
            self.transport.resume_reading()

    async def receive(self) -> WebSocketEvent:
        """Return the next message to the app."""
        event = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._go_on()
        return event

    def handle_ping(self, event: events.Ping) -> None:
        """Answer a ping, unless the client reads no answers."""
        if self.writable.is_set():
            super().handle_ping(event)

    def _reject(self, error: ApiError) -> None:
        """Answer and close; not through wsproto, which cannot answer a HEAD with a body."""
        self.transport.write(error.closing_answer())
        self.transport.close()

    def handle_connect(self, event: events.Request) -> None:
        """Hand the upgrade to the app, without its query, which is not used and would be logged."""
        super().handle_connect(replace(event, target=event.target.partition("?")[0]))

    def handle_message(self, event: events.TextMessage | events.BytesMessage) -> None:
        """Take a part of a message, which counts as a body that has not ended."""
        if self._message is None:
            key = self.scope.get("api_key")
            self._message = self._unread.enter_context(UNREAD.reading(key))
        try:
            self._message.add(len(event.data))
        except ApiError as error:
            self._forget_message()
            self.close_sent = True
            left = {"type": "websocket.disconnect", "code": TRY_LATER, "reason": str(error)}
            self.queue.put_nowait(cast(WebSocketEvent, left))
            close = events.CloseConnection(code=TRY_LATER, reason=str(error))
            self.transport.write(self.conn.send(close))
            self.transport.close()
            return
        super().handle_message(event)
        if event.message_finished or self.close_sent:
            self._forget_message()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the part of a message that has arrived."""
        self._forget_message()
        super().connection_lost(exc)

    def _forget_message(self) -> None:
        self._message = None
        self._unread.close()

    def shutdown(self) -> None:
        """Tell the app that the server ends; before there is one, close."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
            return
        self.close_timeout = CLOSE_SECONDS
        self.queue.put_nowait(cast(WebSocketEvent, {"type": SHUTDOWN}))
