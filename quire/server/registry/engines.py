"""Engines that are loaded when requests need them, and unloaded when others need their memory.

The rules are :class:`ModelTable`'s; they are applied here, in the event loop. Loading and
unloading take seconds and happen in threads. The registry maps names to engines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from quire.core.errors import CapacityError, EngineDeadError, QuireError
from quire.llm.engine_views import SharedEngine
from quire.llm.load_state import Loading
from quire.server.access.waiting_limit import WaitingLimit
from quire.server.generation.service import Service
from quire.server.http.client_disconnects import cancel_on_disconnect
from quire.server.http.http_errors import (
    ApiError,
    not_loadable,
    not_loaded,
    shutting_down,
    without_folders,
)
from quire.server.registry.model_table import (
    HOLDING,
    RETRY_SECONDS,
    LoadDecision,
    ModelEntry,
    ModelState,
    ModelTable,
)
from quire.settings.config import EngineConfig

log = logging.getLogger(__name__)

#: Who waits looks at least as often whether it may go on: patience ends without an event.
LOOK_SECONDS = 0.5

#: Loads an engine with these settings, which takes a while; says how far it is.
LoadEngine: TypeAlias = Callable[[EngineConfig, Loading], SharedEngine]


@dataclass(slots=True, eq=False)
class RegisteredEngine:
    """An engine of a registry: weights, KV cache and a process, for one or more model names.

    Attributes:
        entry: The engine's row in the table, under the name of one of its models.
        config: The engine's settings; the model is a path or a name.
        identity: A key; models with equal ones share the engine. None where it has one model.
        loading: The progress of loading, while it loads.
        client: The client of the engine; None until it is loaded.
        services: The services by the names of its models, while it is loaded.
        admission: The bounds of the queue of all its models.
        failure: The reason why it was not loaded last, as clients get it.
    """

    entry: ModelEntry
    config: EngineConfig
    identity: Hashable = None
    loading: Loading = field(default_factory=Loading)
    client: SharedEngine | None = None
    services: dict[str, Service] = field(default_factory=dict)
    admission: WaitingLimit | None = None
    failure: str = ""

    @property
    def is_out_of_use(self) -> bool:
        """Whether it is not in memory and no request waits for it."""
        return self.entry.state not in HOLDING and not self.entry.num_waiting

    def refusal(self, name: str) -> str:
        """Return the message for a request that asks for one of its models after a failed load."""
        return f"[models] {name} cannot be loaded: {self.failure}"

    async def shutdown(self) -> None:
        """Stop it, if it is loaded; its services end with it."""
        client, services = self.client, [*self.services.values()]
        self.client = self.admission = None  # from now on no request begins to use it
        self.services.clear()
        try:
            if client is not None:
                await client.shutdown()
        finally:
            for service in services:
                await service.shutdown()


class Engines:
    """The engines of a server.

    Args:
        budget_bytes: Bytes of memory for all of them.
        load_engine: The function that loads one.
        wait_seconds: Seconds that a request waits for its engine, at most.
        clock: A monotonic clock, in seconds.
        on_loaded: The function called with each engine that was loaded, before it is used.

    Attributes:
        draining: Whether new requests are refused.
    """

    def __init__(
        self,
        budget_bytes: int,
        load_engine: LoadEngine,
        wait_seconds: float,
        clock: Callable[[], float],
        on_loaded: Callable[[RegisteredEngine], None],
    ) -> None:
        self._load_engine = load_engine
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._on_loaded = on_loaded
        self._table = ModelTable(budget_bytes)
        self._engines: dict[str, RegisteredEngine] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching = False
        self.draining = False

    def add(self, engine: RegisteredEngine) -> None:
        """Make an engine known."""
        self._table.add(engine.entry)
        self._engines[engine.entry.name] = engine

    def forget(self, engine: RegisteredEngine) -> None:
        """Remove an engine that is not in memory and that no request waits for."""
        self._table.forget(engine.entry.name)
        del self._engines[engine.entry.name]

    def rename(self, engine: RegisteredEngine, name: str) -> None:
        """Rename an engine to a name that no other engine has."""
        self._engines[name] = self._engines.pop(engine.entry.name)
        self._table.rename(engine.entry.name, name)

    def find(self, identity: Hashable) -> RegisteredEngine | None:
        """Return the engine of an identity, None if there is none."""
        if identity is None:
            return None
        return next((e for e in self._engines.values() if e.identity == identity), None)

    # -- before there are requests ------------------------------------------------------------
    def note_loaded_at_start(self, engine: RegisteredEngine, client: SharedEngine) -> None:
        """Note that a known engine is loaded.

        Raises:
            CapacityError: The engine does not fit with those that are loaded.
        """
        self._ask_at_start(engine.entry)
        self._note_loaded(engine, client)

    def load_at_start(self, engine: RegisteredEngine, loading: Loading) -> None:
        """Load a known engine in the calling thread, unless it is loaded.

        Raises:
            QuireError: The engine cannot be loaded; requests for it get the error, too.
        """
        entry = engine.entry
        if entry.state is ModelState.READY:
            return
        self._ask_at_start(entry)
        try:
            client = self._load_engine(engine.config, loading)
        except QuireError as error:
            self._note_failed(engine, str(error))
            raise
        self._note_loaded(engine, client)

    def _ask_at_start(self, entry: ModelEntry) -> None:
        if self._table.ask(entry.name, self._clock()) is not LoadDecision.LOAD:
            raise CapacityError(
                f"[models] {entry.name} does not fit next to those that are loaded."
            )

    # -- requests -----------------------------------------------------------------------------
    @asynccontextmanager
    async def lease(
        self,
        engine: RegisteredEngine,
        name: str,
        receive: Receive | None = None,
        is_meant: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[bool]:
        """Return a block in which an engine stays loaded, if the block is given True.

        Args:
            engine: A known engine.
            name: The model's name in the request.
            receive: The same as in :meth:`quire.server.generation.served_models.Models.lease`.
            is_meant: A function that returns whether it is still the engine of that name; once it
                is not, the block is given False.

        Raises:
            ApiError: 503, the server is about to end.
            CapacityError: The engine cannot be loaded, does not fit, or is not there in time.
            ClientDisconnect: The client has left.
        """
        self._watch()
        if not self._ask(engine, name) and not await self._wait_for(
            engine, name, receive, is_meant
        ):
            yield False
            return
        try:
            yield is_meant()
        finally:
            self._release(engine)

    def begin_load(self, engine: RegisteredEngine, name: str) -> bool:
        """Begin to load an engine that no request waits for; return whether it was not loaded yet.

        Args:
            engine: A known engine.
            name: The model's name in the request.

        Raises:
            CapacityError: The engine does not fit with those that stay.
        """
        if engine.entry.state is ModelState.READY:
            return False
        with _refusing(engine, name):
            self._table.check_fits(engine.entry.name)
        self.start(self._load_without_request(engine), "load")
        return True

    def unload(self, engine: RegisteredEngine) -> bool:
        """Unload an engine when its requests have ended; return whether it was in memory."""
        held = self._table.unload(engine.entry.name)
        self._act()
        return held

    def drain(self) -> None:
        """Refuse new requests."""
        self.draining = True
        for engine in self._engines.values():
            engine.loading.cancelled = True
            if engine.admission is not None:
                engine.admission.draining = True
        self._act()

    async def shutdown(self) -> None:
        """Stop all engines."""
        loads = [task for task in self._tasks if task.get_name() in ("load", "unload")]
        await asyncio.gather(*loads, return_exceptions=True)
        await asyncio.gather(*(engine.shutdown() for engine in self._engines.values()))
        for task in [*self._tasks]:
            task.cancel()

    def notify(self) -> None:
        """Wake the requests that wait, so that they ask again; asking does not call this."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def next_change(self) -> None:
        """Wait until something has changed, for a moment at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin work that ends with the engines."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ask(self, engine: RegisteredEngine, name: str) -> bool:
        """Return whether the engine is leased, for a model of that name; begin what that needs."""
        if self.draining:
            raise shutting_down()
        with _refusing(engine, name):
            answer = self._table.ask(engine.entry.name, self._clock())
        self._begin_unloads()
        if answer is LoadDecision.LOAD:
            self.start(self._load(engine), "load")
            self.notify()  # those after it may have their turn
        return answer is LoadDecision.LEASED

    async def _wait_for(
        self,
        engine: RegisteredEngine,
        name: str,
        receive: Receive | None,
        is_meant: Callable[[], bool],
    ) -> bool:
        """Return True when the engine is leased, False when it is not meant any more."""
        leased = ended = False
        self._table.begin_wait(engine.entry.name)
        try:
            watching = nullcontext() if receive is None else cancel_on_disconnect(receive)
            async with watching, asyncio.timeout(self._wait_seconds):
                while is_meant() and not (leased := self._ask(engine, name)):
                    await self.next_change()
                ended = True
            if not ended:
                raise ClientDisconnect
            return leased
        except BaseException as error:
            if leased:
                self._release(engine)
            if isinstance(error, TimeoutError):
                raise _late(engine, name) from None
            raise
        finally:
            self._table.end_wait(engine.entry.name)
            self.notify()

    def _release(self, engine: RegisteredEngine) -> None:
        self._table.release(engine.entry.name, self._clock())
        self._act()

    async def _load_without_request(self, engine: RegisteredEngine) -> None:
        with suppress(QuireError, ApiError):  # requests that need it get the error
            async with self.lease(engine, engine.entry.name) as leased:
                assert leased, engine.entry

    # -- what the table asks for --------------------------------------------------------------
    def _act(self) -> None:
        """Begin the unloads that are due, and wake those that wait."""
        self._begin_unloads()
        self.notify()

    def _begin_unloads(self) -> None:
        for name in self._table.begin_unloads():
            self.start(self._unload(self._engines[name]), "unload")

    async def _load(self, engine: RegisteredEngine) -> None:
        entry, started = engine.entry, self._clock()
        try:
            client = await self._try_to_load(engine)
        except Exception as error:
            if not isinstance(error, QuireError):
                log.exception("[models] loading %s failed", entry.name)
            reason = str(error) if isinstance(error, QuireError) else "see the log."
            self._note_failed(engine, reason)
        else:
            self._note_loaded(engine, client)
            log.info("[models] %s is loaded after %.1f s", entry.name, self._clock() - started)
        self._act()

    def _note_loaded(self, engine: RegisteredEngine, client: SharedEngine) -> None:
        engine.client = client
        self._on_loaded(engine)
        self._table.loaded(engine.entry.name, self._clock())

    def _note_failed(self, engine: RegisteredEngine, reason: str) -> None:
        name = engine.entry.name
        refusal = not_loadable(name, reason, RETRY_SECONDS)
        engine.failure = without_folders(reason)
        self._table.load_failed(name, refusal, self._clock())

    async def _try_to_load(self, engine: RegisteredEngine) -> SharedEngine:
        """Load an engine; a process that is lost says nothing of it, so another one tries, once."""
        engine.loading = Loading()
        try:
            return await asyncio.to_thread(self._load_engine, engine.config, engine.loading)
        except EngineDeadError as error:
            if engine.loading.cancelled:
                raise
            log.warning("%s %s is loaded once more.", error, engine.entry.name)
        return await asyncio.to_thread(self._load_engine, engine.config, engine.loading)

    async def _unload(self, engine: RegisteredEngine) -> None:
        try:
            await engine.shutdown()
        finally:
            self._table.unloaded(engine.entry.name)
            log.info("[models] %s is unloaded", engine.entry.name)
            self._act()

    def _watch(self) -> None:
        """Look after idle engines from now on."""
        if not self._watching:
            self._watching = True
            self.start(self._unload_idle(), "watch")

    async def _unload_idle(self) -> None:
        while True:
            expiry = self._table.next_expiry()
            seconds = None if expiry is None else max(0.0, expiry - self._clock())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
            self._table.unload_idle(self._clock())
            self._begin_unloads()


@contextmanager
def _refusing(engine: RegisteredEngine, name: str) -> Iterator[None]:
    """Rename refusals in the block from the engine to the model that was asked for."""
    try:
        yield
    except CapacityError as error:
        if error is engine.entry.error:
            told = engine.refusal(name)
        elif name != engine.entry.name:
            told = f"[models] {name} has the engine of {engine.entry.name}: {error}"
        else:
            raise
        raise CapacityError(told, error.retry_after_seconds) from error


def _late(engine: RegisteredEngine, name: str) -> Exception:
    if engine.entry.state is not ModelState.LOADING:
        return CapacityError(f"[models] {name} waits for the memory of others. Try again.", 5)
    return not_loaded(name, engine.loading)
