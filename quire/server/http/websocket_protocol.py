"""A WebSocket's connection: the app may finish what runs on it, and refusals have OpenAI's body.

uvicorn's own protocol closes it at once when the server ends, with the answer half sent, refuses
without a body, and logs the query.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, cast

from uvicorn._types import WebSocketEvent
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import events
from wsproto.connection import ConnectionState
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from quire.server.http.errors import ApiError
from quire.server.http.unread_bodies import UNREAD, UnreadBody

#: Received by the app when the server has begun to end. It is to close the connection soon.
SHUTDOWN = "quire.shutdown"
#: For the client's half of the closing handshake; a client that is gone never sends it.
CLOSE_SECONDS = 2.0
#: Code of a close: the server has too much to do.
TRY_LATER = 1013


class WebSocketProtocol(WSProtocol):
    """uvicorn's protocol; see the module."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._message: UnreadBody | None = None  # that comes
        self._unread = ExitStack()  # it is counted till this closes

    @property
    def waits_to_write(self) -> bool:
        """Whether all that is unsent waits for the client alone."""
        return not self.writable.is_set() or self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client; an upgrade that is none is refused."""
        if self.conn.state is not ConnectionState.CONNECTING:
            self._take(data)
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

    def _take(self, data: bytes) -> None:
        """Take frames; what is not one ends the connection, and so does one after the close."""
        try:
            self.conn.receive_data(data)
            self.handle_events()
        except (RemoteProtocolError, LocalProtocolError) as error:
            hint = getattr(error, "event_hint", None)
            if hint is not None:
                with suppress(LocalProtocolError):
                    self.transport.write(self.conn.send(hint))
            self.transport.close()

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
        """Forget what has come of a message."""
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
