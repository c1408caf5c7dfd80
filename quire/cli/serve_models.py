"""From settings to the models that ``quire serve`` serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.core.config import EngineConfig
from quire.core.loading import Loading
from quire.core.machine import read_machine
from quire.core.memory_budget import budget_from_total
from quire.llm.memory_needs import PROCESS_BYTES, MemoryNeeds, memory_needs, share_memory
from quire.llm.process.proxy import EngineProxy
from quire.server.access.authentication import ApiKey
from quire.server.generation.by_model import Models, OneModel
from quire.server.generation.service import Service, model_names
from quire.server.generation.shared import Shared
from quire.server.observability.tracing import check_available
from quire.server.options import ServerOptions
from quire.server.registry.model_registry import ModelRegistry, RegisteredModel
from quire.server.registry.model_table import Entry


def load_models(
    configs: Sequence[EngineConfig],
    options: ServerOptions,
    keys: Sequence[ApiKey],
    loading: Loading,
) -> Models:
    """Load what is served from the start, and return all that requests may name.

    Args:
        configs: Of one model each, the default one first.
        options: Of the server.
        keys: Who may call.
        loading: Told how far it is.

    Raises:
        QuireError: A model cannot be loaded, or they do not fit together.
    """
    if options.otlp_traces_endpoint is not None:
        check_available()  # before a model is loaded
    shared = Shared(options, keys)

    def load(config: EngineConfig, loading: Loading) -> Service:
        engine = EngineProxy(
            config,
            watchdog_timeout=options.watchdog_timeout,
            log_format=options.log_format,
            grammar_timeout=options.grammar_compilation_timeout,
            loading=loading,
        )
        return Service(engine, engine.config, shared)

    if len(configs) == 1 and not options.load_on_demand:
        return OneModel(load(configs[0], loading))
    machine = read_machine()
    fraction = configs[0].cache.gpu_memory_utilization
    budget = configs[0].cache.memory or budget_from_total(machine.free_bytes, fraction)
    needs = [memory_needs(config, machine) for config in configs]
    on_demand = options.load_on_demand
    grants = _grants_on_demand(needs, budget) if on_demand else share_memory(needs, budget)
    models = [
        RegisteredModel(
            Entry(
                name=model_names(config.model)[0],
                num_bytes=grant + PROCESS_BYTES,
                keep_alive=options.keep_alive if on_demand and options.keep_alive >= 0 else None,
                pinned=not on_demand,
            ),
            replace(config, cache=replace(config.cache, memory=grant)),
        )
        for config, grant in zip(configs, grants, strict=True)
    ]
    registry = ModelRegistry(shared, models, budget, load, options.load_wait)
    if not on_demand:
        for model in models:
            loading.begin()
            registry.load_now(model.entry.name, loading)
    return registry


def _grants_on_demand(needs: Sequence[MemoryNeeds], budget: int) -> list[int]:
    """Return what each model gets when it is loaded: half of all, so that two fit where they can.

    What needs more than all is found when a request names it.
    """
    part = budget // 2 - PROCESS_BYTES
    return [min(need.most, max(need.least, part)) for need in needs]
