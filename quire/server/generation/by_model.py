"""Routes whose requests name a model: the request is read, then its model's endpoint answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.core.config import EngineConfig
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.service import Service, meant_name, named_at_start, no_such_model
from quire.server.generation.shared import Shared
from quire.server.http.body import Fields, model_name, read_json
from quire.server.http.errors import ApiError


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that requests may name.

    Attributes:
        names: It goes by; the first is shown.
        config: Its engine's settings.
        state: ``ready`` when it is loaded.
        service: When it is loaded.
    """

    names: tuple[str, ...]
    config: EngineConfig
    state: str
    service: Service | None


class Models(Protocol):
    """The models of a server, by the names that requests use.

    Attributes:
        shared: What they have in common.
    """

    shared: Shared

    def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AbstractAsyncContextManager[Service]:
        """Return a block in which a model stays loaded.

        Args:
            name: As in the request; None means the first. What else stands for a model is said by
                :meth:`Service.resolve_model`, which refuses what names none.
            receive: Of the request, whose body has been read: when its client leaves, it waits no
                longer.
        """
        ...

    def known(self) -> list[KnownModel]:
        """Return all models, those that were named at the start first."""
        ...


def find_known(models: Models, name: str) -> tuple[KnownModel, str]:
    """Return a model, which need not be loaded, and the name of it that ``name`` stands for.

    Raises:
        ApiError: 404, no model has that name.
    """
    for model in models.known():
        meant = meant_name(name, model.config.model)
        if meant is not None:
            return model, meant
    raise no_such_model(name)


class ManagedModels(Models, Protocol):
    """The same, for those who decide which are loaded, and until when."""

    async def load(self, name: str) -> bool:
        """Begin to load a model; return whether it was not loaded yet.

        Raises:
            ApiError: 404, no model has that name.
        """
        ...

    async def unload(self, name: str) -> bool:
        """Have a model go when its requests have ended; return whether it was in memory.

        Raises:
            ApiError: 404, no model has that name; 501, it is the only one and stays.
        """
        ...

    async def forget(self, name: str) -> None:
        """Have a model go whose files or settings change; who names it next gets it as it is then.

        Does nothing for a name that no model has.

        Raises:
            ApiError: 409, it was named at the start and stays.
        """
        ...

    def drain(self) -> None:
        """Let nobody else in; what runs goes on."""
        ...

    async def end_requests(self) -> None:
        """Stop the engines; open requests end with ``abort``. A second call does nothing."""
        ...


class OneModel:
    """The only model of a server, loaded as long as that lives; see :class:`Models`."""

    def __init__(self, service: Service) -> None:
        self.shared = service.shared
        self._service = service

    @asynccontextmanager
    async def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AsyncIterator[Service]:
        yield self._service

    def known(self) -> list[KnownModel]:
        service = self._service
        return [KnownModel(service.model_names, service.config, "ready", service)]

    async def load(self, name: str) -> bool:
        self._service.resolve_model(name)
        return False

    async def unload(self, name: str) -> bool:
        name = self._service.resolve_model(name)
        raise ApiError(501, f"{name} is this server's only model and stays as long as it runs.")

    async def forget(self, name: str) -> None:
        if meant_name(name, self._service.config.model) is not None:
            raise named_at_start(name)

    def drain(self) -> None:
        self._service.admission.draining = True

    async def end_requests(self) -> None:
        await self._service.shutdown()


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
        async with self._models.lease(received.model, receive) as service:
            await self._kind(service, *self._settings).respond(received)


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
