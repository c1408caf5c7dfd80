"""Routes whose requests name a model: the request is read, then its model's endpoint answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.service import Service
from quire.server.http.body import Fields, model_name, read_json


class Models(Protocol):
    """The models of a server, by the names that requests use."""

    def lease(self, name: str | None) -> AbstractAsyncContextManager[Service]:
        """Return a block in which a model stays; None, or no model's name, means the first.

        What a name that is known here stands for is said by :meth:`Service.resolve_model`.
        """
        ...


class OneModel:
    """The only model of a server, loaded as long as that lives."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[Service]:
        """See the protocol."""
        yield self._service


class ByModel:
    """The ASGI app of a route: an endpoint is made for each request, of the model it names.

    Args:
        models: To choose from.
        kind: Of the endpoint.
        settings: Its arguments besides the service.
    """

    def __init__(self, models: Models, kind: type[GenerationEndpoint[Any]], *settings: Any) -> None:
        self._models = models
        self._kind = kind
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that goes away ends it."""
        received = await self._kind.read(scope, receive, send)
        async with self._models.lease(received.model) as service:
            await self.endpoint(service).respond(received)

    def endpoint(self, service: Service) -> GenerationEndpoint[Any]:
        """Return the endpoint of a model."""
        return self._kind(service, *self._settings)


Answer: TypeAlias = Callable[[Service, Request], Awaitable[Response]]
JsonAnswer: TypeAlias = Callable[[Service, Request, Fields], Awaitable[Response]]


def get_route(models: Models, path: str, answer: Answer) -> Route:
    """Return a route without a body; the model is a part of its path, or of the query."""

    async def get(request: Request) -> Response:
        name = request.path_params.get("model") or request.query_params.get("model")
        async with models.lease(name) as service:
            return await answer(service, request)

    return Route(path, get, methods=["GET"], name=answer.__name__)


def post_route(models: Models, path: str, answer: JsonAnswer, any_type: bool = False) -> Route:
    """Return a route with a JSON body, which names the model; see :func:`read_json`."""

    async def post(request: Request) -> Response:
        fields = await read_json(request, any_type)
        async with models.lease(model_name(fields)) as service:
            return await answer(service, request, fields)

    return Route(path, post, methods=["POST"], name=answer.__name__)
