"""``POST /models/pull``, ``/watch`` and ``/cancel``, and the form in which pulls are reported.

A pull's answer is lines of JSON, one for each step, as in Ollama's ``/api/pull``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.protocol.ollama.ollama_store import OllamaPullRequest
from quire.server.generation.pulls import Pulls
from quire.server.http.body import json_response, read_any_type, read_fields, read_json
from quire.server.http.client_disconnects import cancel_on_disconnect
from quire.server.http.http_errors import ApiError
from quire.server.http.sse import LINES, send_events
from quire.store.manifests import canonical_name
from quire.store.pull_progress import PullProgress

#: Begins a pull, or watches one, and yields its steps.
Steps: TypeAlias = Callable[[str], AsyncGenerator[PullProgress, None]]


class PullRoute:
    """The ASGI app of a route that pulls.

    Args:
        steps: The steps of pulling the model that a request names.
        strict: Whether fields that do nothing are refused.
    """

    def __init__(self, steps: Steps, strict: bool) -> None:
        self._steps = steps
        self._strict = strict

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the steps as lines, or with the last one."""
        received = await read_any_type(scope, receive, send)
        body, headers = read_fields(received.fields, OllamaPullRequest, self._strict)
        name = _pullable(body.meant)
        async with cancel_on_disconnect(received.http.receive):
            if body.stream is not False:
                await send_events(send, self._lines(name), headers, 0, LINES)
                return
            async with aclosing(self._steps(name)) as steps:
                async for _ in steps:
                    pass
            await received.answer(json_response({"status": "success"}, headers))

    async def _lines(self, name: str) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._steps(name)) as steps:
            async for step in steps:
                told = asdict(step).items()
                line = {name: value for name, value in told if value}
                yield LINES.event(msgspec.json.encode(line))


def routes(pulls: Pulls, strict: bool) -> list[Route]:
    """Return the routes."""

    async def cancel(request: Request) -> Response:
        body, headers = read_fields(await read_json(request), OllamaPullRequest, strict)
        was_running = pulls.cancel(_pullable(body.meant))
        return json_response({"success": True, "was_running": was_running}, headers)

    return [
        Route("/models/pull", PullRoute(pulls.watch, strict), methods=["POST"]),
        Route("/models/pull/watch", PullRoute(pulls.watch_running, strict), methods=["POST"]),
        Route("/models/pull/cancel", cancel, methods=["POST"]),
    ]


def _pullable(name: str) -> str:
    """Return a name that may be pulled: none of a folder or file of this machine."""
    plain = canonical_name(name)
    if plain is None:
        raise ApiError(400, "invalid model name", param="model")
    return plain
