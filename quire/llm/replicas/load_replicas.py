"""Several engines of one model, loaded at the same time; they divide what the machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeAlias

from quire.llm.load_state import Loading
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.replicated_engine import ReplicatedEngine
from quire.llm.replicas.roles import NO_ROLES, Roles
from quire.planner.memory_budget import budget_from_total
from quire.settings.config import EngineConfig
from quire.settings.kv_transfer import KVTransfer
from quire.settings.resolve import check_memory
from quire.system.machine import Machine

#: Loads the engine of a number.
LoadEngine: TypeAlias = Callable[[int, EngineConfig, Loading], EngineProxy]
#: How often it is asked how far the first one is, and whether they are still wanted.
LOOK_SECONDS = 0.1
#: Of the memory of an engine that gets prompts from others, for their blocks on the way; and most.
INBOX_PART, INBOX_BYTES = 1 / 8, 2**30


def divide(config: EngineConfig, machine: Machine, count: int) -> EngineConfig:
    """Return the settings of each of ``count`` engines of a machine.

    Each gets an equal part of the memory and the cores. A size of the KV cache or a number of
    threads that a flag gives is each engine's. Where Ray may place further engines, their part of
    the cores counts.

    Raises:
        ConfigError: The machine has less memory.
    """
    cache, parallel = config.cache, config.parallel
    threads = parallel.threads
    if threads is None:
        threads = max(1, machine.num_cores // (count * parallel.layout.size))
    backend = parallel.distributed_executor_backend
    if parallel.places_engines:
        count = max(count, machine.num_cores // (threads * parallel.layout.size))
        backend = "auto"  # all ranks of an engine are on its node
    memory = cache.memory
    if memory is None and cache.free_gpu_memory_fraction is not None:
        memory = machine.free_bytes  # it is of the rest
    if memory is None:
        memory = budget_from_total(machine.free_bytes, cache.gpu_memory_utilization)
    check_memory(memory, machine)
    return replace(
        config,
        cache=replace(cache, memory=max(1, memory // count)),
        memory_parts=count,
        parallel=replace(
            parallel,
            data_parallel_size=1,
            nnodes=1,
            node_rank=0,
            threads=threads,
            distributed_executor_backend=backend,
        ),
    )


def engine_settings(
    config: EngineConfig, machine: Machine, roles: Roles = NO_ROLES
) -> list[EngineConfig]:
    """Return the settings of each of a model's engines, by their numbers.

    Args:
        config: Settings of the model, with the number of engines of all roles.
        machine: The machine as it was before any engine was loaded.
        roles: Roles of the engines.

    Raises:
        ConfigError: Prompts cannot be computed apart.
    """
    parallel = config.parallel
    count, num_own = parallel.data_parallel_size, parallel.num_own_engines(roles.num_prefill)
    others = [f"machine {n // num_own}" for n in range(num_own, count)]  # none listens there
    hosts = [parallel.master_addr] * num_own + others
    own = divide(config, machine, num_own)
    transfers = roles.transfers(hosts, parallel.master_port + 1)
    return [_with_role(own, transfer) for transfer in transfers]


def own_engines(config: EngineConfig, machine: Machine, roles: Roles) -> list[EngineConfig]:
    """Return the settings of a model's engines on this machine; of engines alike, those of one.

    Args:
        config: Settings of the model, with the number of engines of all roles.
        machine: The machine as it is.
        roles: Roles of the engines.

    Raises:
        ConfigError: Prompts cannot be computed apart.
    """
    if config.parallel.data_parallel_size == 1:
        return [config]
    kinds: dict[str, EngineConfig] = {}
    num_own = config.parallel.num_own_engines(roles.num_prefill)
    for own in engine_settings(config, machine, roles)[:num_own]:
        kinds.setdefault("" if own.transfer is None else own.transfer.role, own)
    return [*kinds.values()]


def load_replicas(
    config: EngineConfig,
    machine: Machine,
    loading: Loading,
    load: LoadEngine,
    roles: Roles = NO_ROLES,
) -> ReplicatedEngine:
    """Load the engines of a model, all at once, in threads.

    Args:
        config: Settings of the model, with the number of engines of all roles.
        machine: The machine as it was before any engine was loaded.
        loading: The progress of the first engine, written to.
        load: The function that loads one engine.
        roles: Roles of the engines.

    Raises:
        QuireError: An engine cannot be loaded; those that were loaded are shut down.
    """
    settings = engine_settings(config, machine, roles)
    loadings = [Loading() for _ in settings]
    with ThreadPoolExecutor(len(loadings), thread_name_prefix="quire-load") as pool:
        loads = [
            pool.submit(load, number, own, each)
            for number, (own, each) in enumerate(zip(settings, loadings, strict=True))
        ]
        loading.begin()
        state = wait(loads, 0.0, FIRST_EXCEPTION)
        while state.not_done and not loading.cancelled and not _failures(state.done):
            loading.advance(loadings[0].done_bytes, loadings[0].total_bytes)
            state = wait(loads, LOOK_SECONDS, FIRST_EXCEPTION)
        for other in loadings if state.not_done else ():
            other.cancelled = True
    failures = _failures(state.done) or _failures(loads)
    if failures:
        for one in loads:
            if one.exception() is None:
                one.result().close()
        raise failures[0]
    return ReplicatedEngine([one.result() for one in loads], roles)


def _failures(loads: Iterable[Future[EngineProxy]]) -> list[BaseException]:
    return [failure for one in loads if (failure := one.exception()) is not None]


def _with_role(config: EngineConfig, transfer: KVTransfer | None) -> EngineConfig:
    """Return an engine's settings with its role, and memory for blocks that are on their way."""
    config = replace(config, transfer=transfer)
    if transfer is None or transfer.role != "decode" or config.offload.ram_bytes:
        return config
    num_bytes = min(int((config.cache.memory or 0) * INBOX_PART), INBOX_BYTES)
    return replace(config, offload=replace(config.offload, kv_offload_bytes=num_bytes))
