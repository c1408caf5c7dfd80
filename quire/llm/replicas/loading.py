"""Several engines of one model, loaded at the same time; they divide what the machine has."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeAlias

from quire.core.config import EngineConfig
from quire.core.loading import Loading
from quire.core.machine import Machine
from quire.core.memory_budget import budget_from_total
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.replicated_engine import ReplicatedEngine

#: Loads the engine of a number.
LoadEngine: TypeAlias = Callable[[int, EngineConfig, Loading], EngineProxy]


def divide(config: EngineConfig, machine: Machine) -> EngineConfig:
    """Return the settings of each engine: an equal part of the memory and of the cores.

    What is given by flag for the KV cache or as threads is each engine's.
    """
    count, cache, parallel = config.parallel.data_parallel_size, config.cache, config.parallel
    memory = cache.memory
    if memory is None and cache.free_gpu_memory_fraction is not None:
        memory = machine.free_bytes  # it is of the rest
    if memory is None:
        memory = budget_from_total(machine.free_bytes, cache.gpu_memory_utilization)
    threads = parallel.threads
    if threads is None:
        threads = max(1, machine.num_cores // (count * parallel.layout.size))
    return replace(
        config,
        cache=replace(cache, memory=max(1, memory // count)),
        parallel=replace(parallel, data_parallel_size=1, threads=threads),
    )


def load_replicas(
    config: EngineConfig, machine: Machine, loading: Loading, load: LoadEngine
) -> ReplicatedEngine:
    """Load the engines of a model, all at once, in threads.

    Args:
        config: Says how many.
        machine: As it was before.
        loading: Told how far the first one is.
        load: Called for each.

    Raises:
        QuireError: One of them cannot be loaded; those that could are shut down.
    """
    own = divide(config, machine)
    loadings = [loading, *(Loading() for _ in range(config.parallel.data_parallel_size - 1))]
    with ThreadPoolExecutor(len(loadings), thread_name_prefix="quire-load") as pool:
        loads = [pool.submit(load, i, own, each) for i, each in enumerate(loadings)]
        done, _ = wait(loads, return_when=FIRST_EXCEPTION)
        if any(one.exception() is not None for one in done):
            for each in loadings[1:]:
                each.cancelled = True
    failures = [failure for one in loads if (failure := one.exception()) is not None]
    if failures:
        for one in loads:
            if one.exception() is None:
                one.result().close()
        raise failures[0]
    return ReplicatedEngine([one.result() for one in loads])
