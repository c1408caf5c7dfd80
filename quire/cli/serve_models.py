"""Loading of the models that ``quire serve`` serves, from settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from quire.cli.serve_plan import Grant, MemoryShare, ServingPlan
from quire.core.metrics import stem_of
from quire.llm.load_state import Loading
from quire.llm.process.launcher import ChildLauncher, EngineLauncher
from quire.llm.process.proxy import EngineProxy
from quire.server.access.authentication import ApiKey
from quire.server.generation.served_models import ManagedModels, OneModel
from quire.server.generation.service import Service, model_names
from quire.server.generation.shared import Shared
from quire.server.registry.engines import RegisteredEngine
from quire.server.registry.model_registry import ModelRegistry, RegisteredModel
from quire.server.registry.model_table import ModelEntry
from quire.server.registry.stored_models import StoredModels
from quire.settings.config import EngineConfig
from quire.system.child_process import ChildProcess
from quire.system.machine import read_machine

if TYPE_CHECKING:
    from quire.llm.replicas.replicated_engine import ReplicatedEngine

#: Of a model: one engine or several.
ServedEngine: TypeAlias = "EngineProxy | ReplicatedEngine"


@dataclass(frozen=True, slots=True)
class EngineLoader:
    """Loads the engines of models.

    Attributes:
        plan: The models to serve, with their settings and memory.
        waiting: Processes that wait to load an engine.
    """

    plan: ServingPlan
    waiting: list[ChildProcess]

    def load(self, config: EngineConfig, loading: Loading) -> ServedEngine:
        """Load a model's engine, or engines.

        Raises:
            QuireError: An engine cannot be loaded.
        """
        parallel = config.parallel
        if parallel.data_parallel_size == 1:
            return self._load_one(0, config, loading)
        # Imported where they are needed: one engine starts without them.
        from quire.llm.replicas.load_replicas import load_replicas
        from quire.llm.replicas.remote_placement import engines_elsewhere

        machine, roles = read_machine(), self.plan.roles
        log_format = self.plan.options.log_format
        others = engines_elsewhere(config, machine, roles.num_prefill, log_format, loading)
        if others is not None and parallel.places_engines:
            config = replace(config, parallel=replace(parallel, master_addr=others.address[0]))
        launchers = {} if others is None else others.launchers()

        def load(number: int, config: EngineConfig, loading: Loading) -> EngineProxy:
            return self._load_one(number, config, loading, launchers.get(number))

        return load_replicas(config, machine, loading, load, roles)

    def _load_one(
        self,
        number: int,
        config: EngineConfig,
        loading: Loading,
        launcher: EngineLauncher | None = None,
    ) -> EngineProxy:
        options = self.plan.options
        if self.waiting and number == 0:
            launcher = ChildLauncher(self.waiting.pop())
        return EngineProxy(
            config,
            watchdog_timeout=options.watchdog_timeout,
            log_format=options.log_format,
            grammar_timeout=options.grammar_compilation_timeout,
            niceness=self.plan.weights.niceness(model_names(config.model)[0]),
            loading=loading,
            launcher=launcher,
            meanwhile=_import_routes,
        )


def load_models(
    plan: ServingPlan, keys: Sequence[ApiKey], loading: Loading, process: ChildProcess | None
) -> ManagedModels:
    """Load the models that are served from the start, and return all that requests may name.

    Args:
        plan: The models to serve.
        keys: The keys of clients that may call.
        loading: The progress of loading, which is updated here.
        process: An engine's process that waits to load the first model.

    Raises:
        QuireError: A model cannot be loaded, or the models do not fit together.
    """
    configs, options = plan.configs, plan.options
    shared = Shared(options, keys)
    load = EngineLoader(plan, [] if process is None else [process]).load
    if plan.is_alone:
        engine = load(configs[0], loading)
        service = Service(engine, engine.config, shared)
        service.adapters.add_folders(plan.folders, engine)
        return OneModel(service)
    memory = plan.memory
    keep_alive = None if options.keep_alive < 0 else options.keep_alive

    def on_demand(config: EngineConfig) -> RegisteredModel:
        return _registered(memory, config, memory.grant_on_demand(config), keep_alive=keep_alive)

    further = StoredModels(configs[0], on_demand)
    registry = ModelRegistry(shared, memory.budget_bytes, load, options.load_wait, further)
    if options.load_on_demand:
        for config, grant in zip(configs, plan.grants, strict=True):
            registry.add(_registered(memory, config, grant, keep_alive=keep_alive))
    elif plan.named:
        registry = ModelRegistry(shared, memory.budget_bytes, load, options.load_wait)
        for config, grant in zip(configs, plan.grants, strict=True):
            model = _registered(memory, config, grant, pinned=True)
            loading.begin()
            registry.add(model)
            registry.load_at_start(model, loading)
    else:
        engine = load(memory.engine_config(configs[0]), loading)
        registry.add_loaded(_loaded(memory, configs[0], engine), engine)
    for name in options.preload:
        loading.begin()
        registry.preload(name, loading)
    return registry


def _import_routes() -> None:
    """Import the routes that answer requests: a tenth of a second that no client waits for."""
    import quire.server.app  # noqa: F401


def _loaded(memory: MemoryShare, config: EngineConfig, engine: ServedEngine) -> RegisteredModel:
    """Return a model whose engine is loaded and stays, with the memory that it took."""
    pools = [
        value
        for name, value in engine.stats().items()
        if stem_of(name) == "memory_bytes" and isinstance(value, int | float)
    ]
    grant = Grant(int(sum(pools)), 0)
    return _registered(memory, config, grant, pinned=True, of_engine=engine.config)


def _registered(
    memory: MemoryShare,
    config: EngineConfig,
    grant: Grant,
    *,
    pinned: bool = False,
    keep_alive: float | None = None,
    of_engine: EngineConfig | None = None,
) -> RegisteredModel:
    """Return a model whose engine gets a grant."""
    num_bytes = grant.memory + grant.process_bytes
    entry = ModelEntry(model_names(config.model)[0], num_bytes, keep_alive, pinned)
    of_engine = of_engine or memory.engine_config(config)
    engine = RegisteredEngine(entry, grant.apply(of_engine), memory.identity(config))
    renew = partial(_registered, memory, config, grant, pinned=pinned, keep_alive=keep_alive)
    return RegisteredModel(config, engine, renew=renew)
