"""The outermost layer of every request: its id, its record, and its failures as answers."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Iterable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.http_errors import ApiError, ErrorForm, error_form, to_api_error
from quire.server.observability.request_record import RequestRecord, Sink

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
X_REQUEST_ID = b"x-request-id"


class Boundary:
    """ASGI middleware: names each request and answers whatever the routes raise.

    The id is the client's ``X-Request-Id`` or a fresh one; it is in ``scope["request_id"]`` and on
    the answer, for Anthropic's clients under their name of it, too. What else is known of the
    request is gathered in ``scope["record"]``, which each of ``sinks`` gets when the request has
    ended. Starlette's own two layers for errors each wrap every chunk that is sent; this one
    replaces both.
    """

    def __init__(self, app: ASGIApp, sinks: Iterable[Sink] = ()) -> None:
        self.app = app
        self._sinks = tuple(sinks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; answer its exception unless an answer has begun."""
        if scope["type"] != "http":
            await self.app(scope, receive, _refusing_send(scope, receive, send))
            return
        given = dict(scope["headers"]).get(X_REQUEST_ID)
        refused = given is not None and not _REQUEST_ID.fullmatch(given)
        request_id = uuid.uuid4().hex.encode() if given is None or refused else given
        record = RequestRecord.begin(scope, request_id.decode())
        started = False
        for_anthropic = error_form(scope) is ErrorForm.ANTHROPIC
        names = (X_REQUEST_ID, b"request-id") if for_anthropic else (X_REQUEST_ID,)

        def named_send(message: Message) -> Awaitable[None]:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                record.start_answer(message["status"])
                message = _named(message, request_id, names)
            else:
                record.count_sent(len(message.get("body", b"")))
                if not message.get("more_body"):
                    # Before the client can act on the answer and look for it in the metrics.
                    self._end(record, scope)
            return send(message)

        # Makes Starlette's router raise 404 and 405 instead of answering in plain text.
        scope["app"] = self
        scope["request_id"] = record.request_id
        scope["record"] = record
        path = scope["path"]
        try:
            if refused:
                raise ApiError(400, "[x-request-id] must be 1 to 128 visible ASCII characters.")
            await self.app(scope, receive, named_send)
        except ClientDisconnect:
            return  # The client is gone.
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a Rust library is not an Exception
            if started:
                raise
            if isinstance(error, HTTPException) and error.status_code == 404:
                error = ApiError(404, f"There is no route {path}.")
            if isinstance(error, HTTPException) and error.status_code == 405:
                allowed = (error.headers or {}).get("Allow", "")
                text = f"Method Not Allowed: {path} takes {allowed}." if allowed else error.detail
                error = ApiError(405, text, headers=error.headers)
            answer = to_api_error(error).response(scope)
            await answer(scope, receive, named_send)
        finally:
            self._end(record, scope)

    def _end(self, record: RequestRecord, scope: Scope) -> None:
        """Hand the record to the sinks, once."""
        if not record.ended:
            record.end(scope)
            for sink in self._sinks:
                sink(record)


def _named(message: Message, request_id: bytes, names: Iterable[bytes]) -> Message:
    """Return the head of an answer with the request's id under some names."""
    fields = [(name, request_id) for name in names]
    return {**message, "headers": [*message["headers"], *fields]}


def _refusing_send(scope: Scope, receive: Receive, send: Send) -> Send:
    """Return a ``send`` of a WebSocket that makes a close before it is accepted an answer."""
    accepted = False

    async def refusing_send(message: Message) -> None:
        nonlocal accepted
        kind = message["type"]
        if kind == "websocket.close" and not accepted:  # so the router says that it has no such
            error = ApiError(404, f"There is no WebSocket at {scope['path']}.")
            await error.response(scope)(scope, receive, refusing_send)
            return
        if kind == "websocket.http.response.start":
            message = _named(message, uuid.uuid4().hex.encode(), (X_REQUEST_ID,))
        accepted = accepted or kind == "websocket.accept"
        await send(message)

    return refusing_send
