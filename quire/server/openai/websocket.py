"""Completions over a WebSocket: a request is one message, each event of its stream another."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from quire.protocol.decode import decode_json
from quire.server.access.authentication import SUBPROTOCOL, ApiKey, client_of
from quire.server.generation.endpoint import GenerationEndpoint, errors_in_sent_names
from quire.server.generation.generate import generate
from quire.server.generation.pacing import paced
from quire.server.generation.served_models import Models
from quire.server.generation.submission import ApiRequest
from quire.server.http.body import decode_in_turn, model_name, read_fields_in_turn
from quire.server.http.http_errors import ApiError, shutting_down, to_api_error
from quire.server.http.websocket_protocol import SHUTDOWN
from quire.server.observability.request_record import RequestRecord, Sink

DONE = "[DONE]"
PONG = '{"type":"pong"}'
_DATA = b"data: "


class WebSocketStream:
    """The ASGI app of an endpoint's WebSocket.

    The client sends the endpoint's JSON body; what server-sent events would carry after ``data:``
    comes back as text messages, ``[DONE]`` last. Then it may send the next. ``{"type": "ping"}`` is
    answered at any time, ``{"type": "cancel"}`` ends what runs, and so does closing the connection.
    When the server ends, a running request continues to its ``[DONE]``, as a stream of server-sent
    events does, and no new one begins; then the connection is closed with code 1012.
    """

    def __init__(
        self, models: Models, kind: type[GenerationEndpoint[Any]], sinks: Iterable[Sink]
    ) -> None:
        self._models = models
        self._kind = kind
        self._sinks = tuple(sinks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept", "subprotocol": _subprotocol(scope)})
        connection = _Connection(self, scope, send)
        try:
            while True:
                message = await receive()
                if message["type"] == "websocket.disconnect" or connection.closed:
                    return
                if message["type"] == SHUTDOWN:
                    await connection.drain()
                else:
                    await connection.handle(message)
        except OSError:
            return  # The client is gone.
        finally:
            await connection.cancel()

    async def stream(
        self, data: bytes, record: RequestRecord, scope: Scope
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a request's answer."""
        key: ApiKey | None = scope.get("api_key")
        fields = await decode_in_turn(scope, data, decode_json)
        fields |= {"stream": msgspec.Raw(b"true")}
        async with self._models.lease(model_name(fields)) as service:
            endpoint = self._kind(service)
            strict = service.options.strict_params
            body, _ = await read_fields_in_turn(
                client_of(key).client_id, fields, endpoint.kind, strict, endpoint.unused_fields
            )
            prefix = endpoint.id_prefix
            request = ApiRequest.accept(service, prefix, body, record, key, body.timeout)
            with errors_in_sent_names(body):
                answer, submission = await endpoint.prepare(request)
                outputs = paced(generate(service, submission), request.stream_interval)
                async with aclosing(answer.events(outputs)) as events:
                    async for event in events:
                        yield event

    def record(self, record: RequestRecord) -> None:
        """Hand on what is known of a request that has ended."""
        for sink in self._sinks:
            sink(record)


class _Connection:
    """One client's requests, one after another.

    Attributes:
        closed: The close frame has been sent.
    """

    def __init__(self, app: WebSocketStream, scope: Scope, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._send = send
        self._busy = False
        self._draining = False
        self._working: asyncio.Task[None] | None = None
        self.closed = False

    async def handle(self, message: Message) -> None:
        """Act on a message of the client."""
        data = message.get("bytes") or (message.get("text") or "").encode()
        kind = _type_of(data)
        if kind == "ping":
            await self._write(PONG)
        elif kind == "cancel":
            if self._busy:
                await self.cancel()
                await self._finish()
        elif self._draining:
            await self._write(shutting_down().body().decode())
        elif self._busy:
            busy = ApiError(400, "[body] one request at a time: wait for [DONE], or cancel.")
            await self._write(busy.body().decode())
        else:
            self._busy = True
            self._working = asyncio.create_task(self._answer(data))

    async def drain(self) -> None:
        """Begin nothing more; close as soon as nothing runs."""
        self._draining = True
        if self._working is None or self._working.done():
            await self._close()

    async def cancel(self) -> None:
        """End what runs; its blocks are free within one step."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        self._busy = False

    async def _answer(self, data: bytes) -> None:
        record = RequestRecord.begin(self._scope, uuid.uuid4().hex, len(data))
        try:
            await self._stream(data, record)
            record.start_answer(200)
        except OSError:
            return
        except Exception as error:
            refused = to_api_error(error)
            record.start_answer(refused.status)
            await self._write(refused.body().decode())
        finally:
            record.end(self._scope)
            self._app.record(record)
        await self._finish()

    async def _finish(self) -> None:
        """Say that the request is over."""
        self._busy = False
        await self._write(DONE)
        if self._draining and not self._busy:
            await self._close()

    async def _close(self) -> None:
        self.closed = True
        reason = shutting_down().message
        await self._send({"type": "websocket.close", "code": 1012, "reason": reason})

    async def _stream(self, data: bytes, record: RequestRecord) -> None:
        async with aclosing(self._app.stream(data, record, self._scope)) as events:
            async for event in events:
                record.count_sent(len(event))
                # Several events may come at once, each after its own `data:`.
                for part in event.split(b"\n\n"):
                    if part:
                        await self._write(part.removeprefix(_DATA).decode())

    async def _write(self, text: str) -> None:
        await self._send({"type": "websocket.send", "text": text})


def _subprotocol(scope: Scope) -> str | None:
    """Return one of those offered: a browser closes what leaves its offer unanswered."""
    offered: list[str] = scope.get("subprotocols") or []
    names = [name for name in offered if not name.startswith(SUBPROTOCOL)]
    return next(iter([*names, *offered]), None)


def _type_of(data: bytes) -> str | None:
    """Return the ``type`` of a control message; None for requests and for what is not JSON."""
    if len(data) > 64:
        return None
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None
