"""A WebSocket client over a plain socket; it answers pings, and nothing else, by itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import wsproto
from wsproto import events


class Refused(Exception):
    """The upgrade was refused with this HTTP status, and this body."""


class Client:
    """One connection.

    Args:
        url: Of the server, ``http://host:port``.
        path: Of the route.
        headers: More headers of the upgrade.
        subprotocols: Offered.
    """

    def __init__(
        self,
        url: str,
        path: str,
        headers: dict[str, str] | None = None,
        subprotocols: tuple[str, ...] = (),
    ) -> None:
        place = urlsplit(url)
        assert place.hostname and place.port
        self.socket = socket.create_connection((place.hostname, place.port), timeout=60)
        self._protocol = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._events: list[events.Event] = []
        self._text = ""
        pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.send(
            events.Request(
                host=place.netloc, target=path, extra_headers=pairs, subprotocols=[*subprotocols]
            )
        )
        answer = self.next_event()
        if isinstance(answer, events.RejectConnection):
            body, last = b"", False
            while not last:
                event = self.next_event()
                assert isinstance(event, events.RejectData), event
                body, last = body + event.data, event.body_finished
            self.socket.close()
            raise Refused(answer.status_code, json.loads(body))
        assert isinstance(answer, events.AcceptConnection), answer
        self.subprotocol = answer.subprotocol

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, event: events.Event) -> None:
        self.socket.sendall(self._protocol.send(event))

    def ask(self, body: Any) -> None:
        self.send(events.TextMessage(body if isinstance(body, str) else json.dumps(body)))

    def next_event(self) -> events.Event:
        while not self._events:
            data = self.socket.recv(65536)
            self._protocol.receive_data(data or None)
            for event in self._protocol.events():
                if isinstance(event, events.Ping):
                    self.send(event.response())
                else:
                    self._events.append(event)
        return self._events.pop(0)

    def next_text(self) -> str:
        """Return the next whole text message."""
        while True:
            event = self.next_event()
            assert isinstance(event, events.TextMessage), event
            self._text += event.data
            if event.message_finished:
                text, self._text = self._text, ""
                return text

    def answers(self) -> Iterator[Any]:
        """Yield the events of one request up to ``[DONE]``."""
        while (text := self.next_text()) != "[DONE]":
            yield json.loads(text)
