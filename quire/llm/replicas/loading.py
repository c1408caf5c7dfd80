"""Several engines of one model, loaded at the same time; they divide what the machine has."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeAlias

from quire.core.config import EngineConfig
from quire.core.expert_sharing import ExpertSharing
from quire.core.kv_transfer import KVTransfer
from quire.core.loading import Loading
from quire.core.machine import Machine
from quire.core.memory_budget import budget_from_total
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.replicated_engine import ReplicatedEngine
from quire.llm.replicas.roles import NO_ROLES, Roles

#: Loads the engine of a number.
LoadEngine: TypeAlias = Callable[[int, EngineConfig, Loading], EngineProxy]
#: Of the memory of an engine that gets prompts from others, for their blocks on the way; and most.
INBOX_PART, INBOX_BYTES = 1 / 8, 2**30


def divide(config: EngineConfig, machine: Machine, count: int) -> EngineConfig:
    """Return the settings of each of ``count`` engines: an equal part of the memory and the cores.

    What is given by flag for the KV cache or as threads is each engine's.
    """
    cache, parallel = config.cache, config.parallel
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
    config: EngineConfig,
    machine: Machine,
    loading: Loading,
    load: LoadEngine,
    roles: Roles = NO_ROLES,
) -> ReplicatedEngine:
    """Load the engines of a model, all at once, in threads.

    Args:
        config: Says how many.
        machine: As it was before.
        loading: Told how far the first one is.
        load: Called for each.
        roles: Of the engines.

    Raises:
        QuireError: One of them cannot be loaded; those that could are shut down.
    """
    transfers = roles.transfers(config.parallel.data_parallel_size)
    own = divide(config, machine, len(transfers))
    sharings = _sharings(config, len(transfers))
    loadings = [loading, *(Loading() for _ in transfers[1:])]
    with ThreadPoolExecutor(len(loadings), thread_name_prefix="quire-load") as pool:
        loads = [
            pool.submit(load, number, replace(_with_role(own, transfer), sharing=sharing), each)
            for number, (each, transfer, sharing) in enumerate(
                zip(loadings, transfers, sharings, strict=True)
            )
        ]
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
    return ReplicatedEngine([one.result() for one in loads], roles)


def _sharings(config: EngineConfig, count: int) -> Sequence[ExpertSharing | None]:
    """Return what each engine has to do with the experts of others."""
    if count == 1 or not config.parallel.shares_experts:
        return [None] * count
    name = f"quire-experts-{secrets.token_hex(16)}"
    addresses = tuple(f"{name}-{number}" for number in range(count))
    return [ExpertSharing(number, addresses) for number in range(count)]


def _with_role(config: EngineConfig, transfer: KVTransfer | None) -> EngineConfig:
    """Return an engine's settings with its role, and memory for blocks that are on their way."""
    config = replace(config, transfer=transfer)
    if transfer is None or transfer.role != "decode" or config.offload.ram_bytes:
        return config
    num_bytes = min(int((config.cache.memory or 0) * INBOX_PART), INBOX_BYTES)
    return replace(config, offload=replace(config.offload, kv_offload_bytes=num_bytes))
