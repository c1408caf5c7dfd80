"""From settings to the models that ``quire serve`` serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.core.config import CacheOptions, EngineConfig
from quire.core.errors import ConfigError
from quire.core.loading import Loading
from quire.core.machine import Machine, read_machine
from quire.core.memory_budget import budget_from_total
from quire.core.metrics import stem_of
from quire.llm.process.child import ChildProcess
from quire.llm.process.proxy import EngineProxy
from quire.server.access.authentication import ApiKey
from quire.server.generation.models import ManagedModels, OneModel
from quire.server.generation.service import Service, model_names
from quire.server.generation.shared import Shared
from quire.server.observability.tracing import check_available
from quire.server.options import ServerOptions
from quire.server.registry.core_weights import CoreWeights
from quire.server.registry.model_registry import ModelRegistry, RegisteredModel
from quire.server.registry.model_table import Entry
from quire.server.registry.stored_models import StoredModels


def load_models(
    configs: Sequence[EngineConfig],
    options: ServerOptions,
    keys: Sequence[ApiKey],
    loading: Loading,
    *,
    named: bool,
    process: ChildProcess | None,
) -> ManagedModels:
    """Load what is served from the start, and return all that requests may name.

    Args:
        configs: Of one model each, the default one first.
        options: Of the server.
        keys: Who may call.
        loading: Told how far it is.
        named: The models were chosen; else the first is there for want of others, and requests may
            name any of the store.
        process: An engine's, which waits; of the model that is loaded first.

    Raises:
        QuireError: A model cannot be loaded, or they do not fit together.
    """
    if options.otlp_traces_endpoint is not None:
        check_available()  # before a model is loaded
    weights = CoreWeights(options.core_weight)
    names = [model_names(config.model)[0] for config in configs]
    if named and not options.load_on_demand:
        weights.check_known(names)
        if options.preload:
            raise ConfigError(
                "[config] --preload must come with --load-on-demand; got it without. All models "
                "that are named are loaded at once."
            )
    shared = Shared(options, keys)
    waiting = [] if process is None else [process]

    def load(config: EngineConfig, loading: Loading) -> Service:
        engine = EngineProxy(
            config,
            watchdog_timeout=options.watchdog_timeout,
            log_format=options.log_format,
            grammar_timeout=options.grammar_compilation_timeout,
            niceness=weights.niceness(model_names(config.model)[0]),
            loading=loading,
            process=waiting.pop() if waiting else None,
        )
        return Service(engine, engine.config, shared)

    on_demand = options.load_on_demand
    if named and len(configs) == 1 and not on_demand:
        return OneModel(load(configs[0], loading))
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                "[config] models that are served together must have different names; got "
                f"{name} twice. Rename a folder or file, or link to it."
            )
    memory = SharedMemory.measure(configs[0].cache)
    keep_alive = None if options.keep_alive < 0 else options.keep_alive

    further = StoredModels(configs[0], lambda config: memory.register(config, keep_alive))
    registry = ModelRegistry(shared, memory.budget_bytes, load, options.load_wait, further)
    if on_demand:
        for config in configs:
            registry.add(memory.register(config, keep_alive))
    elif named:
        registry = ModelRegistry(shared, memory.budget_bytes, load, options.load_wait)
        for model in memory.register_together(configs):
            loading.begin()
            registry.add_loaded(model, load(model.config, loading))
    else:
        service = load(configs[0], loading)
        registry.add_loaded(memory.register_loaded(service), service)
    for name in options.preload:
        loading.begin()
        registry.load_now(name, loading)
    return registry


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """What several models share.

    Attributes:
        machine: As it was measured.
        budget_bytes: For all of them.
    """

    machine: Machine
    budget_bytes: int

    @classmethod
    def measure(cls, cache: CacheOptions) -> SharedMemory:
        """Look what there is now."""
        machine = read_machine()
        budget = budget_from_total(machine.free_bytes, cache.gpu_memory_utilization)
        return cls(machine, cache.memory or budget)

    def register(self, config: EngineConfig, keep_alive: float | None) -> RegisteredModel:
        """Return a model that comes and goes: it gets half of all, so that two fit where they can.

        One that needs more than there is is refused when a request names it.
        """
        # Imported where it is needed: with one model the server loads no kernels.
        from quire.llm.memory_needs import PROCESS_BYTES, memory_needs

        need = memory_needs(config, self.machine)
        grant = min(need.most, max(need.least, self.budget_bytes // 2 - PROCESS_BYTES))
        return _registered(config, grant, PROCESS_BYTES, keep_alive=keep_alive)

    def register_together(self, configs: Sequence[EngineConfig]) -> list[RegisteredModel]:
        """Return models that stay.

        Raises:
            ConfigError: They do not fit together.
        """
        from quire.llm.memory_needs import PROCESS_BYTES, memory_needs, share_memory

        needs = [memory_needs(config, self.machine) for config in configs]
        grants = share_memory(needs, self.budget_bytes)
        return [
            _registered(config, grant, PROCESS_BYTES, pinned=True)
            for config, grant in zip(configs, grants, strict=True)
        ]

    def register_loaded(self, service: Service) -> RegisteredModel:
        """Return the model of a service, which stays, with the memory that it took."""
        pools = [
            value
            for name, value in service.engine.stats().items()
            if stem_of(name) == "memory_bytes" and isinstance(value, int | float)
        ]
        return _registered(service.config, int(sum(pools)), 0, pinned=True)


def _registered(
    config: EngineConfig,
    grant: int,
    process_bytes: int,
    *,
    pinned: bool = False,
    keep_alive: float | None = None,
) -> RegisteredModel:
    """Return a model that gets ``grant`` bytes when it is loaded, and its process as much."""
    entry = Entry(model_names(config.model)[0], grant + process_bytes, keep_alive, pinned)
    return RegisteredModel(entry, replace(config, cache=replace(config.cache, memory=grant)))
