"""A WebSocket's connection when the server ends: the app may finish what runs on it.

uvicorn's own protocol closes it at once, with the answer half sent.
"""

from __future__ import annotations

from typing import cast

from uvicorn._types import WebSocketEvent
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

#: Received by the app when the server has begun to end. It is to close the connection soon.
SHUTDOWN = "quire.shutdown"
#: For the client's half of the closing handshake, which a client that is gone never sends.
CLOSE_SECONDS = 2.0


class WebSocketProtocol(WSProtocol):
    """uvicorn's protocol; see the module."""

    def shutdown(self) -> None:
        """Tell the app that the server ends; before there is one, close."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
            return
        self.close_timeout = CLOSE_SECONDS
        self.queue.put_nowait(cast(WebSocketEvent, {"type": SHUTDOWN}))
