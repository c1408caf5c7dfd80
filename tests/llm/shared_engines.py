"""Engines that the tests of a module share, each lent to one test at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import psutil

from quire.core.metrics import Samples, add_up
from quire.llm.engine_client import EngineClient

E = TypeVar("E", bound=EngineClient)
#: What is there of requests; all are nought where none is.
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
#: The longest that an engine takes to come back, or to end what it was told to end.
SECONDS = 60.0


class Growth:
    """How much an engine's counters have grown since this was made."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._before: Samples = engine.stats()

    def __call__(self, stem: str, **labels: str) -> float:
        return add_up(self._engine.stats(), stem, **labels) - add_up(self._before, stem, **labels)


class SharedEngines(Generic[E]):
    """Loads an engine for the first test that asks for one of these settings.

    A test gets it with nothing cached. When the test is over all its processes serve, and nothing
    of a request is left: the engine is ended and the test fails where that is not so.

    Args:
        load: Loads one, with settings as keywords.
    """

    def __init__(self, load: Callable[..., E]) -> None:
        self._load = load
        self._engines: dict[str, E] = {}
        self._lent: dict[str, E] = {}

    async def get(self, **settings: Any) -> E:
        """Return the engine of these settings."""
        key = repr(sorted(settings.items()))
        if key not in self._lent:
            engine = self._engines.pop(key, None) or self._load(**settings)
            self._lent[key] = engine
            await engine.reset_prefix_cache()
        return self._lent[key]

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Callable[..., Any]]:
        """Lend engines for a block, which gets :meth:`get`."""
        try:
            yield self.get
            async with asyncio.timeout(SECONDS):
                while not all(map(_is_idle, self._lent.values())):
                    await asyncio.sleep(0.01)
            self._engines |= self._lent
        except BaseException:
            for engine in self._lent.values():
                await _end(engine)
            raise
        finally:
            self._lent.clear()

    def end(self) -> None:
        """End all; no process of theirs is left."""
        for engine in self._engines.values():
            asyncio.run(_end(engine))
        self._engines.clear()


def sharing(load: Callable[..., E]) -> Iterator[SharedEngines[E]]:
    """Yield engines for the fixture of a module, and end them."""
    engines = SharedEngines(load)
    yield engines
    engines.end()


def _processes(engine: Any) -> list[Any]:
    """Return an engine's parts that are processes; one in a thread has none."""
    return [one for one in getattr(engine, "engines", [engine]) if hasattr(one, "pid")]


def _is_idle(engine: EngineClient) -> bool:
    if any(one.pid is None for one in _processes(engine)) or engine.progress().pending:
        return False
    stats = engine.stats()
    return not any(add_up(stats, gauge) for gauge in GAUGES)


async def _end(engine: EngineClient) -> None:
    pids = [one.pid for one in _processes(engine)]
    await engine.shutdown()
    assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids)
