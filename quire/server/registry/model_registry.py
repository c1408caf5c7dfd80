"""Models that are loaded when requests name them, and unloaded when others need their memory.

The rules are :class:`ModelTable`'s; here they are acted on, in the event loop. Loading and
unloading take seconds and happen in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from quire.core.config import EngineConfig
from quire.core.errors import CapacityError, EngineDeadError, QuireError
from quire.core.loading import Loading
from quire.models.manifests import plain_name
from quire.server.generation.models import KnownModel
from quire.server.generation.service import (
    Service,
    is_placeholder,
    meant_name,
    model_names,
    named_at_start,
    no_such_model,
)
from quire.server.generation.shared import Shared
from quire.server.http.connection import cancel_on_disconnect
from quire.server.http.errors import ApiError, not_loadable, not_loaded, shutting_down
from quire.server.registry.model_table import (
    RETRY_SECONDS,
    Answer,
    Entry,
    EntryResidence,
    ModelState,
    ModelTable,
)

log = logging.getLogger(__name__)

#: Who waits looks at least as often whether it may go on: patience ends without an event.
LOOK_SECONDS = 0.5

#: Loads a model with these settings, which takes a while; says how far it is.
LoadService: TypeAlias = Callable[[EngineConfig, Loading], Service]


@dataclass(slots=True)
class RegisteredModel:
    """A model of a registry.

    Attributes:
        entry: Its place in the table.
        config: Its engine's settings.
        named: It was named when the server was started, and stays known.
        loading: How far it is while it loads.
        is_current: Returns whether its files and settings are those it was found with.
        service: When it is loaded.
    """

    entry: Entry
    config: EngineConfig
    named: bool = True
    is_current: Callable[[], bool] = lambda: True
    loading: Loading = field(default_factory=Loading)
    service: Service | None = None


class FurtherModels(Protocol):
    """Models that were not named at the start; where they are is looked up each time."""

    def list(self) -> list[KnownModel]:
        """Return all."""
        ...

    def look_up(self, name: str) -> KnownModel | None:
        """Return the model of a name, None if there is none.

        Raises:
            QuireError: What is known of it is damaged.
        """
        ...

    def find(self, name: str) -> RegisteredModel | None:
        """Return it as one that can be loaded.

        Raises:
            QuireError: It cannot be.
        """
        ...


class ModelRegistry:
    """The models of a server; see :class:`quire.server.generation.models.Models`.

    The one that is added first is the default.

    Args:
        shared: What they have in common.
        budget_bytes: Of memory for all of them.
        load_service: Loads one.
        wait_seconds: A request waits as long for its model.
        further: Those that requests may name, too.
        clock: Returns seconds; monotonic.
    """

    def __init__(
        self,
        shared: Shared,
        budget_bytes: int,
        load_service: LoadService,
        wait_seconds: float,
        further: FurtherModels | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shared = shared
        self._further = further
        self._load_service = load_service
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._table = ModelTable(budget_bytes)
        self._models: dict[str, RegisteredModel] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[str] = set()
        self._watching = False
        self._draining = False

    def add(self, model: RegisteredModel) -> None:
        """Make a model known."""
        if not self._models:
            self.shared.metrics.model_name = model.entry.name
        self._models[model.entry.name] = model
        self._table.add(model.entry)

    def add_loaded(self, model: RegisteredModel, service: Service) -> None:
        """Make a model known that is loaded.

        Raises:
            CapacityError: It does not fit with those that are.
        """
        self.add(model)
        answer = self._table.ask(model.entry.name, self._clock())
        assert answer is Answer.LOAD, answer
        self._note_loaded(model, service)

    def load_now(self, name: str, loading: Loading) -> None:
        """Load a model before there are requests, in the calling thread.

        One that cannot be loaded is logged, and told to those who ask for it.

        Args:
            name: Of one that is known, or of a further one.
            loading: Told how far it is.
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
            answer = self._table.ask(model.entry.name, self._clock())
            if answer is not Answer.LOAD:
                raise CapacityError(f"[models] {name} does not fit next to those that are loaded.")
        except QuireError as error:
            log.warning("[models] --preload %s: %s", name, error)
            return
        try:
            self._note_loaded(model, self._load_service(model.config, loading))
        except QuireError as error:
            refusal = not_loadable(model.entry.name, str(error), RETRY_SECONDS)
            self._table.load_failed(model.entry.name, refusal, self._clock())

    def _note_loaded(self, model: RegisteredModel, service: Service) -> None:
        model.service = service
        self._table.loaded(model.entry.name, self._clock())
        if not model.entry.pinned:
            service.residence = EntryResidence(model.entry, self._clock)

    # -- as Models ----------------------------------------------------------------------------
    @asynccontextmanager
    async def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AsyncIterator[Service]:
        """See the protocol.

        Raises:
            ApiError: 404 no model has that name, 503 the server is about to end.
            CapacityError: It cannot be loaded, does not fit, or is not there in time.
            ClientDisconnect: The client has left.
        """
        model = await self._find(name)
        key = model.entry.name
        self._watch()
        if not self._ask(key):
            await self._wait_for(model, receive)
        try:
            assert model.service is not None
            yield model.service
        finally:
            self._release(key)

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
        self._draining = True
        self.shared.pulls.end()
        for model in self._models.values():
            model.loading.cancelled = True
            if model.service is not None:
                model.service.admission.draining = True
        self._act()

    async def end_requests(self) -> None:
        loads = [task for task in self._tasks if task.get_name() in ("load", "unload")]
        await asyncio.gather(*loads, return_exceptions=True)
        services = [model.service for model in self._models.values() if model.service is not None]
        await asyncio.gather(*(service.shutdown() for service in services))
        for task in [*self._tasks]:
            task.cancel()

    async def load(self, name: str) -> bool:
        model = await self._find(name)
        if model.entry.state is ModelState.READY:
            return False
        self._table.check_fits(model.entry.name)
        self._start(self._load_for_nobody(model.entry.name), "load")
        return True

    async def _load_for_nobody(self, name: str) -> None:
        with suppress(ApiError, CapacityError):  # told to those who come and need it
            async with self.lease(name):
                pass

    async def unload(self, name: str) -> bool:
        held = self._table.unload((await self._find(name)).entry.name)
        self._act()
        return held

    async def forget(self, name: str) -> None:
        model = self._known_as(name)
        if model is None:
            return
        if model.named:
            raise named_at_start(name)
        name = model.entry.name
        while self._table.unload(name):
            self._act()
            await self._next_change()
            if model.entry.num_waiting:
                return  # they load it again, as it is then
        if self._models.get(name) is model and not model.entry.num_waiting:
            del self._models[name]
            self._table.forget(name)

    # -- requests -----------------------------------------------------------------------------
    async def _find(self, name: str | None) -> RegisteredModel:
        if not name or is_placeholder(name, self._models):
            return next(iter(self._models.values()))
        known = self._known_as(name)
        if known is not None and self._is_current(known):
            return known
        try:
            further = self._further
            found = None if further is None else await asyncio.to_thread(further.find, name)
        except QuireError as error:  # damaged, or another program's that is not supported
            raise not_loadable(name, str(error), RETRY_SECONDS) from error
        if found is None:
            self.shared.pulls.check_absent(name)
            raise no_such_model(name)
        if known is not None:
            await self._let_go(known)
        known = self._models.get(found.entry.name)  # another request may have been faster
        if known is None:
            self.add(found)
        return known or found

    def _is_current(self, model: RegisteredModel) -> bool:
        """Return whether a model is still what its name stands for; have it go if it is not."""
        if model.is_current():
            return True
        name = model.entry.name
        if name not in self._leaving and self._models.get(name) is model:
            self._leaving.add(name)
            self._start(self._leave(name), "leave")
        return False

    async def _leave(self, name: str) -> None:
        try:
            await self.forget(name)
        finally:
            self._leaving.discard(name)
            self._notify()

    async def _let_go(self, model: RegisteredModel) -> None:
        """Wait until the last requests of a model have ended that is not what it was."""
        name = model.entry.name
        try:
            async with asyncio.timeout(self._wait_seconds):
                while self._models.get(name) is model:
                    self._is_current(model)
                    await self._next_change()
        except TimeoutError:
            reason = f"[models] {name} was changed, and older requests still use it. Try again."
            raise CapacityError(reason, 5) from None

    def _known_as(self, name: str) -> RegisteredModel | None:
        for model in self._models.values():
            if meant_name(name, model.config.model) is not None:
                return model
        return None

    def _ask(self, key: str) -> bool:
        """Return whether the model is leased; begin what that needs."""
        if self._draining:
            raise shutting_down()
        answer = self._table.ask(key, self._clock())
        self._begin_unloads()
        if answer is Answer.LOAD:
            self._start(self._load(self._models[key]), "load")
            self._notify()  # those after it may have their turn
        return answer is Answer.LEASED

    async def _wait_for(self, model: RegisteredModel, receive: Receive | None) -> None:
        """Return when the model is leased."""
        key, leased = model.entry.name, False
        self._table.begin_wait(key)
        try:
            watching = nullcontext() if receive is None else cancel_on_disconnect(receive)
            async with watching, asyncio.timeout(self._wait_seconds):
                while not self._ask(key):
                    await self._next_change()
                leased = True
            if not leased:
                raise ClientDisconnect
        except BaseException as error:
            if leased:
                self._release(key)
            if isinstance(error, TimeoutError):
                raise self._late(model) from None
            raise
        finally:
            self._table.end_wait(key)
            self._notify()

    def _release(self, key: str) -> None:
        self._table.release(key, self._clock())
        self._act()

    def _late(self, model: RegisteredModel) -> Exception:
        loading, name = model.loading, model.entry.name
        if model.entry.state is not ModelState.LOADING:
            return CapacityError(f"[models] {name} waits for the memory of others. Try again.", 5)
        return not_loaded(name, loading)

    # -- what the table asks for --------------------------------------------------------------
    def _act(self) -> None:
        """Begin the unloads that are due, and wake those that wait."""
        self._begin_unloads()
        self._notify()

    def _begin_unloads(self) -> None:
        for key in self._table.begin_unloads():
            self._start(self._unload(self._models[key]), "unload")

    def _notify(self) -> None:
        """Have those that wait ask again; none of them does this while it only asks."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next_change(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)

    async def _load(self, model: RegisteredModel) -> None:
        name = model.entry.name
        started = self._clock()
        try:
            service = await self._try_to_load(model)
        except Exception as error:
            if not isinstance(error, QuireError):
                log.exception("[models] loading %s failed", name)
            reason = str(error) if isinstance(error, QuireError) else "see the log."
            refusal: Exception = not_loadable(name, reason, RETRY_SECONDS)
            if await self._is_removed(model):
                refusal = no_such_model(name)
            self._table.load_failed(name, refusal, self._clock())
        else:
            service.admission.draining = self._draining
            self._note_loaded(model, service)
            log.info("[models] %s is loaded after %.1f s", name, self._clock() - started)
        self._act()

    async def _is_removed(self, model: RegisteredModel) -> bool:
        """Return whether there is no model of that name any more."""
        if model.named or self._further is None:
            return False
        with suppress(QuireError):  # damaged
            return await asyncio.to_thread(self._further.look_up, model.entry.name) is None
        return False

    async def _try_to_load(self, model: RegisteredModel) -> Service:
        """Load a model; a process that is lost says nothing of it, so another one tries, once."""
        model.loading = Loading()
        try:
            return await asyncio.to_thread(self._load_service, model.config, model.loading)
        except EngineDeadError as error:
            if model.loading.cancelled:
                raise
            log.warning("%s %s is loaded once more.", error, model.entry.name)
        return await asyncio.to_thread(self._load_service, model.config, model.loading)

    async def _unload(self, model: RegisteredModel) -> None:
        assert model.service is not None
        try:
            await model.service.shutdown()
        finally:
            model.service = None
            self._table.unloaded(model.entry.name)
            log.info("[models] %s is unloaded", model.entry.name)
            self._act()

    def _watch(self) -> None:
        """Look after idle models from now on."""
        if not self._watching:
            self._watching = True
            self._start(self._unload_idle(), "watch")

    async def _unload_idle(self) -> None:
        while True:
            expiry = self._table.next_expiry()
            seconds = None if expiry is None else max(0.0, expiry - self._clock())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
            self._table.unload_idle(self._clock())
            self._begin_unloads()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _as_known(model: RegisteredModel) -> KnownModel:
    names, entry = model_names(model.config.model), model.entry
    loading = model.loading if entry.state is ModelState.LOADING else None
    error = str(entry.error) if entry.state is ModelState.FAILED else ""
    state = str(entry.state)
    waiting = entry.num_waiting
    return KnownModel(names, model.config, state, model.service, loading, error, waiting)
