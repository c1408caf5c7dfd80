"""The models of a server, by the names that requests use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Receive

from quire.llm.load_state import Loading
from quire.server.generation.service import (
    Service,
    is_placeholder,
    meant_name,
    named_at_start,
    no_such_model,
)
from quire.server.generation.shared import Shared
from quire.server.http.http_errors import ApiError
from quire.settings.config import EngineConfig


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that requests may name.

    Attributes:
        names: The model's names; the first is shown.
        config: Settings of the model's engine.
        state: ``ready`` when it is loaded.
        service: The service when the model is loaded, else None.
        loading: The progress of loading, while it loads.
        error: The reason why it cannot be loaded, when it ``failed``.
        num_waiting: Requests that wait until it is loaded.
    """

    names: tuple[str, ...]
    config: EngineConfig
    state: str
    service: Service | None
    loading: Loading | None = None
    error: str = ""
    num_waiting: int = 0


class Models(Protocol):
    """The models of a server, by the names that requests use.

    Attributes:
        shared: The settings, limits and metrics that all models use.
    """

    shared: Shared

    def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AbstractAsyncContextManager[Service]:
        """Return a block in which a model stays loaded.

        Args:
            name: The name in the request; None means the first. :meth:`Service.resolve_model` says
                which other names stand for a model, and refuses those of no model.
            receive: ASGI ``receive`` of the request, whose body has been read: when its client
                leaves, the wait ends.
        """
        ...

    def known(self) -> list[KnownModel]:
        """Return the models named at the start, then those that requests have named."""
        ...

    async def listed(self) -> list[KnownModel]:
        """Return all models that requests may name now: the known ones, then the store's."""
        ...

    async def look_up(self, name: str | None) -> KnownModel:
        """Return the model that a request with this name would get; nothing is loaded.

        Raises:
            ApiError: 404, no model has that name.
        """
        ...


def find_known(models: Models, name: str | None) -> tuple[KnownModel, str]:
    """Return a model, which need not be loaded, and the name of it that ``name`` stands for.

    Raises:
        ApiError: 404, no model has that name.
    """
    known = models.known()
    if not name or is_placeholder(name, [own for model in known for own in model.names]):
        return known[0], known[0].names[0]
    for model in known:
        meant = meant_name(name, model.config.model)
        if meant is not None:
            return model, meant
        if model.service is not None and name in model.service.adapters:
            return model, name
    raise no_such_model(name)


class ManagedModels(Models, Protocol):
    """The same, for the routes that load and unload models."""

    async def load(self, name: str) -> bool:
        """Begin to load a model; return whether it was not loaded yet.

        Raises:
            ApiError: 404, no model has that name.
            CapacityError: The model does not fit next to those that stay.
        """
        ...

    async def unload(self, name: str) -> bool:
        """Unload a model when its requests have ended; return whether it was in memory.

        Raises:
            ApiError: 404, no model has that name; 501, it is the only one and stays.
        """
        ...

    async def forget(self, name: str) -> None:
        """Unload a model whose files or settings change; the next request loads it as it is then.

        Does nothing for a name that no model has.

        Raises:
            ApiError: 409, the model was named at the start and stays.
        """
        ...

    def drain(self) -> None:
        """Refuse new requests; running ones continue."""
        ...

    async def end_requests(self) -> None:
        """Stop the engines; open requests end with ``abort``. A second call does nothing."""
        ...


class OneModel:
    """The only model of a server, loaded as long as that lives; see :class:`Models`."""

    def __init__(self, service: Service) -> None:
        self.shared = service.shared
        self.shared.metrics.model_name = service.model_names[0]
        self._service = service

    @asynccontextmanager
    async def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AsyncIterator[Service]:
        yield self._service

    def known(self) -> list[KnownModel]:
        service = self._service
        return [KnownModel(service.model_names, service.config, "ready", service)]

    async def listed(self) -> list[KnownModel]:
        return self.known()

    async def look_up(self, name: str | None) -> KnownModel:
        self._service.resolve_model(name)
        return self.known()[0]

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
        self.shared.pulls.end()
        self._service.admission.draining = True

    async def end_requests(self) -> None:
        await self._service.shutdown()
