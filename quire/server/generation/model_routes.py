"""Routes whose requests name a model: the request is read, then its model's endpoint answers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.server.access.authentication import ApiKey
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.served_models import Models, find_known
from quire.server.generation.service import Service
from quire.server.http.body import Fields, model_name, read_json
from quire.server.http.http_errors import ApiError

#: What a token has of text, about, where tokens are not counted.
BYTES_PER_TOKEN = 4


class ByModel:
    """The ASGI app of a route: each request is answered by an endpoint made for its model.

    Args:
        models: The server's models.
        kind: Class of the endpoint.
        settings: The endpoint's arguments besides the service.
    """

    def __init__(self, models: Models, kind: type[GenerationEndpoint[Any]], *settings: Any) -> None:
        self._models = models
        self._kind = kind
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that goes away ends it."""
        received = await self._kind.read(scope, receive, send)
        async with self._models.lease(received.model, receive) as service:
            await self._kind(service, *self._settings).respond(received)


Reply: TypeAlias = Callable[[Service, Request], Awaitable[Response]]
JsonReply: TypeAlias = Callable[[Service, Request, Fields], Awaitable[Response]]


def get_route(models: Models, path: str, answer: Reply) -> Route:
    """Return a route without a body; the model is a part of its path, or of the query.

    To look at a model is no use of it: an absent one is not loaded, and none is kept for longer.
    """

    async def get(request: Request) -> Response:
        name = request.path_params.get("model") or request.query_params.get("model")
        model, meant = find_known(models, name)
        if model.service is None:
            reason = f"{meant} is {model.state}. A request for an answer loads it, or /models/load."
            raise ApiError(503, reason, param="model")
        return await answer(model.service, request)

    return Route(path, get, methods=["GET"], name=answer.__name__)


def post_route(models: Models, path: str, answer: JsonReply, any_type: bool = False) -> Route:
    """Return a route with a JSON body, which names the model; see :func:`read_json`.

    It counts against the limits of its key, by the size of the body.
    """

    async def post(request: Request) -> Response:
        fields = await read_json(request, any_type)
        key: ApiKey | None = request.scope.get("api_key")
        if key is not None:
            num_bytes = sum(map(len, fields.values()))
            models.shared.rate_limits.admit(key, math.ceil(num_bytes / BYTES_PER_TOKEN))
        async with models.lease(model_name(fields)) as service:
            return await answer(service, request, fields)

    return Route(path, post, methods=["POST"], name=answer.__name__)
