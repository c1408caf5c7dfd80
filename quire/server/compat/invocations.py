"""``POST /invocations``: SageMaker's one route; the body says which endpoint is meant."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.core.errors import RequestError
from quire.server.http.body import read_body


class Invocations:
    """The ASGI app of the route.

    Args:
        endpoints: By the field that only their requests have.
    """

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._endpoints = dict(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to the endpoint it is for."""
        body = await read_body(Request(scope, receive))
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._choose(body)(scope, replay, send)

    def _choose(self, body: bytes) -> ASGIApp:
        try:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            fields = {}  # any endpoint says what is wrong with it
        found = [name for name in self._endpoints if name in fields]
        if fields and len(found) != 1:
            names = ", ".join(self._endpoints)
            got = " and ".join(found) or "none of them"
            raise RequestError(f"[body] must have exactly one of {names}; got {got}.")
        return self._endpoints[found[0]] if found else next(iter(self._endpoints.values()))
