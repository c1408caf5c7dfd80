"""``POST /invocations``: SageMaker's one route; the body says which endpoint is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from quire.core.errors import RequestError
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.served_models import Models
from quire.server.http.body import JsonRequest


class Invocations:
    """The ASGI app of the route.

    Args:
        models: The server's models.
        endpoints: Endpoints, each by the field that only its requests have.
    """

    def __init__(
        self, models: Models, endpoints: Mapping[str, type[GenerationEndpoint[Any]]]
    ) -> None:
        self._models = models
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the endpoint that its body is meant for."""
        request = await JsonRequest.receive(scope, receive, send)
        found = [name for name in self._endpoints if name in request.fields]
        if request.fields and len(found) != 1:
            names = ", ".join(self._endpoints)
            got = " and ".join(found) or "none of them"
            raise RequestError(f"[body] must have exactly one of {names}; got {got}.")
        # Any of them says what is missing in an empty body.
        kind = self._endpoints[found[0] if found else next(iter(self._endpoints))]
        async with self._models.lease(request.model) as service:
            await kind(service).respond(request)
