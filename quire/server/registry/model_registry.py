"""Models by their names; those with the same weights and settings have one engine.

Loading and unloading are decided for engines, see :class:`Engines`: to unload a model is to
unload all models that share its engine, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from starlette.types import Receive

from quire.core.errors import CapacityError, QuireError
from quire.llm.engine_views import SharedEngine
from quire.llm.load_state import Loading
from quire.llm.requests.request_reader import prepare_preset
from quire.server.generation.served_models import KnownModel
from quire.server.generation.service import (
    Service,
    is_placeholder,
    meant_name,
    model_names,
    named_at_start,
    no_such_model,
)
from quire.server.generation.shared import Shared
from quire.server.http.http_errors import not_loadable
from quire.server.registry.engines import Engines, LoadEngine, RegisteredEngine
from quire.server.registry.model_table import RETRY_SECONDS, EntryResidence, ModelState
from quire.settings.config import EngineConfig
from quire.store.manifests import plain_name

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RegisteredModel:
    """A model of a registry.

    Attributes:
        config: Settings of the engine, and those that belong to the name.
        engine: The engine that computes its answers; one with the same identity may replace it.
        named: Whether it was named when the server was started, and so stays known.
        is_current: A function that returns whether its files and settings are unchanged.
        renew: A function that returns the model with the engine that its name stands for now; it
            reads the disk. None for a model that never changes.
    """

    config: EngineConfig
    engine: RegisteredEngine
    named: bool = True
    is_current: Callable[[], bool] = lambda: True
    renew: Callable[[], RegisteredModel] | None = None

    @property
    def name(self) -> str:
        """The first of its names."""
        return model_names(self.config.model)[0]

    @property
    def service(self) -> Service | None:
        """The service when the model is loaded, else None."""
        return self.engine.services.get(self.name)


class FurtherModels(Protocol):
    """Models that were not named at the start; where they are is looked up each time."""

    def list(self) -> list[KnownModel]:
        """Return all."""
        ...

    def look_up(self, name: str) -> KnownModel | None:
        """Return the model of a name, None if there is none.

        Raises:
            QuireError: The model's files are damaged.
        """
        ...

    def find(self, name: str) -> RegisteredModel | None:
        """Return the model of a name as one that can be loaded.

        Raises:
            QuireError: The model cannot be loaded.
        """
        ...


class ModelRegistry:
    """The models of a server; see :class:`quire.server.generation.served_models.Models`.

    The model that is added first is the default.

    Args:
        shared: The settings, limits and metrics that all models use.
        budget_bytes: Bytes of memory for all of them.
        load_engine: The function that loads an engine.
        wait_seconds: Seconds that a request waits for its model, at most.
        further: Further models that requests may name.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        shared: Shared,
        budget_bytes: int,
        load_engine: LoadEngine,
        wait_seconds: float,
        further: FurtherModels | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shared = shared
        self._further = further
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._engines = Engines(budget_bytes, load_engine, wait_seconds, clock, self._open_all)
        self._models: dict[str, RegisteredModel] = {}
        self._leaving: set[str] = set()

    def add(self, model: RegisteredModel) -> None:
        """Add a model; it shares the engine of models with the same identity, if there is one."""
        if not self._models:
            self.shared.metrics.model_name = model.name
        found = self._engines.find(model.engine.identity)
        if found is None:
            self._engines.add(model.engine)
        else:
            model.engine = found
        self._models[model.name] = model
        if model.engine.client is not None:
            self._try_to_open(model)

    def add_loaded(self, model: RegisteredModel, client: SharedEngine) -> None:
        """Add a model whose engine is loaded.

        Raises:
            CapacityError: The model does not fit with those that are loaded.
        """
        self.add(model)
        self._engines.note_loaded_at_start(model.engine, client)

    def load_at_start(self, model: RegisteredModel, loading: Loading) -> None:
        """Load a known model in the calling thread, before there are requests.

        Raises:
            QuireError: The model cannot be loaded; requests for it get the error, too.
        """
        self._engines.load_at_start(model.engine, loading)

    def preload(self, name: str, loading: Loading) -> None:
        """Load a known model or a further one; a model that cannot be loaded is logged.

        Args:
            name: The model's name.
            loading: The progress, written to.
        """
        try:
            model = self._known_as(name)
            if model is None and self._further is not None:
                model = self._further.find(name)
                if model is not None:
                    self.add(model)
            if model is None:
                log.warning("[models] --preload %s: no model has that name yet", name)
                return
            self.load_at_start(model, loading)
        except QuireError as error:
            log.warning("[models] --preload %s: %s", name, error)

    # -- as Models ----------------------------------------------------------------------------
    @asynccontextmanager
    async def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AsyncIterator[Service]:
        """Return a block in which a model stays loaded; see :class:`Models`.

        Raises:
            ApiError: 404 when no model has that name, 503 when the server is about to end.
            CapacityError: The model cannot be loaded, does not fit, or is not there in time.
            ClientDisconnect: The client has left.
        """
        while True:
            model = await self._find(name)
            is_meant = partial(self._is_meant, model)
            async with self._engines.lease(model.engine, model.name, receive, is_meant) as leased:
                if leased:
                    yield model.service or self._open(model)
                    return

    def known(self) -> list[KnownModel]:
        return [_as_known(model) for model in self._models.values()]

    async def listed(self) -> list[KnownModel]:
        if self._further is None:
            return self.known()
        stored = await asyncio.to_thread(self._further.list)
        found = [_as_known(model) for model in self._models.values() if self._is_current(model)]
        names = {plain_name(name).lower() for model in found for name in model.names}
        return found + [m for m in stored if plain_name(m.names[0]).lower() not in names]

    async def look_up(self, name: str | None) -> KnownModel:
        if not name or is_placeholder(name, self._models):
            return self.known()[0]
        known = self._known_as(name)
        if known is not None and self._is_current(known):
            return _as_known(known)
        try:
            further = self._further
            found = None if further is None else await asyncio.to_thread(further.look_up, name)
        except QuireError as error:
            raise not_loadable(name, str(error), RETRY_SECONDS) from error
        if found is None:
            self.shared.pulls.check_absent(name)
            raise no_such_model(name)
        return found

    def drain(self) -> None:
        self.shared.pulls.end()
        self._engines.drain()

    async def end_requests(self) -> None:
        await self._engines.shutdown()

    async def load(self, name: str) -> bool:
        model = await self._find(name)
        return self._engines.begin_load(model.engine, model.name)

    async def unload(self, name: str) -> bool:
        return self._engines.unload((await self._find(name)).engine)

    async def forget(self, name: str) -> None:
        model = self._known_as(name)
        if model is None:
            return
        if model.named:
            raise named_at_start(name)
        if model.is_current():
            await self._remove(model)
        else:
            await self._leave(model)

    # -- names --------------------------------------------------------------------------------
    async def _find(self, name: str | None) -> RegisteredModel:
        if not name or is_placeholder(name, self._models):
            return await self._renewed(next(iter(self._models.values())))
        known = self._known_as(name)
        if known is not None and self._is_current(known):
            return await self._renewed(known)
        found = await self._find_further(name)
        if found is None:
            self.shared.pulls.check_absent(name)
            raise no_such_model(name)
        if known is not None:
            await self._let_go(known)
        known = self._models.get(found.name)  # another request may have been faster
        if known is None:
            self.add(found)
        return known or found

    async def _renewed(self, model: RegisteredModel) -> RegisteredModel:
        """Return a model with the files that it has now, if it is about to be loaded.

        A hub id may stand for a newer commit than when the engine was registered.
        """
        if model.renew is None or not model.engine.is_out_of_use:
            return model
        try:
            fresh = await asyncio.to_thread(model.renew)
        except QuireError as error:
            raise not_loadable(model.name, str(error), RETRY_SECONDS) from error
        now, engine = self._models.get(model.name), model.engine
        if now is model and engine.is_out_of_use and fresh.engine.identity != engine.identity:
            now = replace(model, engine=fresh.engine)
            self._leave_engine(model)
            self.add(now)
        return now or model

    async def _find_further(self, name: str) -> RegisteredModel | None:
        try:
            further = self._further
            return None if further is None else await asyncio.to_thread(_found, further, name)
        except QuireError as error:  # damaged, or another program's that is not supported
            raise not_loadable(name, str(error), RETRY_SECONDS) from error

    def _known_as(self, name: str) -> RegisteredModel | None:
        for model in self._models.values():
            if meant_name(name, model.config.model) is not None:
                return model
        return None

    def _is_current(self, model: RegisteredModel) -> bool:
        """Return whether a model is still what its name stands for; have it go if it is not."""
        if model.is_current():
            return True
        if model.name not in self._leaving and self._models.get(model.name) is model:
            self._leaving.add(model.name)
            self._engines.start(self._leave(model), "leave")
        return False

    def _is_meant(self, model: RegisteredModel) -> bool:
        """Return whether a model that was found is still what its name stands for."""
        return self._models.get(model.name) is model and self._is_current(model)

    async def _leave(self, model: RegisteredModel) -> None:
        """Remove a model that has changed; its engine stays if its name still stands for it."""
        self._leaving.add(model.name)
        try:
            try:
                found = await self._find_further(model.name)
            except CapacityError:  # requests for the model get it
                found = None
            identity = model.engine.identity
            if found is None or identity is None or found.engine.identity != identity:
                await self._remove(model)
            elif self._models.get(model.name) is model:
                await self._close(model)
                self.add(found)
        finally:
            self._leaving.discard(model.name)
            self._engines.notify()

    async def _remove(self, model: RegisteredModel) -> None:
        """Make a model unknown, and have its engine go that no other one has."""
        engine, name = model.engine, model.name
        while self._models.get(name) is model:
            if not self._others(model):
                if self._engines.unload(engine):
                    await self._engines.next_change()
                    if not engine.entry.num_waiting or self._others(model):
                        continue
                if engine.entry.num_waiting:
                    return  # they load it again, as it is then
            self._leave_engine(model)
            del self._models[name]
            await self._close(model)

    def _leave_engine(self, model: RegisteredModel) -> None:
        """Take a model from its engine; the engine is removed with its last model."""
        engine, others = model.engine, self._others(model)
        if not others:
            self._engines.forget(engine)
        elif engine.entry.name == model.name:
            self._engines.rename(engine, others[0].name)

    def _others(self, model: RegisteredModel) -> list[RegisteredModel]:
        """Return the other models that have the same engine."""
        return [
            other
            for other in self._models.values()
            if other.engine is model.engine and other is not model
        ]

    async def _let_go(self, model: RegisteredModel) -> None:
        """Wait until a model is gone, with its last requests, that is not what it was."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                while self._models.get(model.name) is model:
                    self._is_current(model)
                    await self._engines.next_change()
        except TimeoutError:
            reason = f"[models] {model.name} was changed, and older requests still use it."
            raise CapacityError(f"{reason} Try again.", 5) from None

    # -- services -----------------------------------------------------------------------------
    def _open_all(self, engine: RegisteredEngine) -> None:
        for model in self._models.values():
            if model.engine is engine:
                self._try_to_open(model)

    def _try_to_open(self, model: RegisteredModel) -> None:
        with suppress(CapacityError):  # it is logged, and requests for the model get it
            self._open(model)

    def _open(self, model: RegisteredModel) -> Service:
        """Make the service of a model whose engine is loaded.

        Raises:
            CapacityError: Files of the model, such as its template, cannot be read.
        """
        engine, client = model.engine, model.engine.client
        assert client is not None, engine.entry
        try:
            view = client.view(model.config.model)
            config = replace(
                engine.config, model=replace(model.config.model, max_model_len=view.max_model_len)
            )
            made = Service(view, config, self.shared, engine.admission)
        except Exception as error:  # its template is a program that others wrote
            if not isinstance(error, QuireError):
                log.exception("[models] reading what goes with %s failed", model.name)
            reason = str(error) if isinstance(error, QuireError) else "see the log."
            raise not_loadable(model.name, reason, RETRY_SECONDS) from error
        engine.services[model.name] = made
        engine.admission = made.admission
        made.admission.draining = self._engines.draining
        if not engine.entry.pinned:
            made.residence = EntryResidence(engine.entry, self._clock)
        return made

    async def _close(self, model: RegisteredModel) -> None:
        """End the service of a model, if there is one, after what it has begun."""
        service = model.engine.services.pop(model.name, None)
        if service is None:
            return
        if service.metrics.num_in_flight:
            self._engines.start(self._end(service), "close")
        else:
            await service.shutdown()

    async def _end(self, service: Service) -> None:
        """End a service after its requests."""
        while service.metrics.num_in_flight:
            await self._engines.next_change()
        await service.shutdown()


def _found(further: FurtherModels, name: str) -> RegisteredModel | None:
    """Find a model, in a thread: so its service is opened later without waiting for anything."""
    model = further.find(name)
    if model is not None:
        prepare_preset(model.config.model)
    return model


def _as_known(model: RegisteredModel) -> KnownModel:
    names, entry = model_names(model.config.model), model.engine.entry
    loading = model.engine.loading if entry.state is ModelState.LOADING else None
    error = model.engine.refusal(model.name) if entry.state is ModelState.FAILED else ""
    state, waiting = str(entry.state), entry.num_waiting
    return KnownModel(names, model.config, state, model.service, loading, error, waiting)
