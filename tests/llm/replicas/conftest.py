"""Fixtures of tests with several engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest_asyncio

from quire.llm.load_state import Loading
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.load_replicas import load_replicas
from quire.llm.replicas.replicated_engine import ReplicatedEngine
from quire.llm.replicas.roles import NO_ROLES, Roles
from quire.settings.config import EngineConfig
from quire.system.machine import read_machine

#: A folder of ``PYTHONPATH`` for engines that send blocks to each other.
PATIENT = str(Path(__file__).parent / "patient")


def load(config: EngineConfig, roles: Roles = NO_ROLES) -> ReplicatedEngine:
    """Load engines: those of the configuration, and those for prompts."""

    def load_one(number: int, own: EngineConfig, loading: Loading) -> EngineProxy:
        return EngineProxy(own, loading=loading)

    count = config.parallel.data_parallel_size + roles.num_prefill
    config = replace(config, parallel=replace(config.parallel, data_parallel_size=count))
    return load_replicas(config, read_machine(), Loading(), load_one, roles)


@pytest_asyncio.fixture
async def load_engines() -> AsyncIterator[Callable[..., ReplicatedEngine]]:
    """Return a function that loads engines; at the end no process of theirs is left."""
    made: list[ReplicatedEngine] = []

    def load_own(config: EngineConfig) -> ReplicatedEngine:
        made.append(load(config))
        return made[-1]

    yield load_own
    pids = [engine.pid for one in made for engine in one.engines]
    for engine in made:
        await engine.shutdown()
    assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids)
