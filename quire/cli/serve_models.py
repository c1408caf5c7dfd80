"""From settings to the models that ``quire serve`` serves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from quire.core.cache_options import CacheOptions
from quire.core.child_process import ChildProcess
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.core.loading import Loading
from quire.core.machine import Machine, read_machine
from quire.core.memory_budget import budget_from_total
from quire.core.metrics import stem_of
from quire.llm.process.launcher import ChildLauncher, EngineLauncher
from quire.llm.process.proxy import EngineProxy
from quire.models.file_state import file_state
from quire.models.hub import resolve_model
from quire.server.access.authentication import ApiKey
from quire.server.generation.adapters import NamedFolder, parse_modules
from quire.server.generation.models import ManagedModels, OneModel
from quire.server.generation.service import Service, model_names
from quire.server.generation.shared import Shared
from quire.server.observability.tracing import check_available
from quire.server.options import ServerOptions
from quire.server.registry.core_weights import CoreWeights
from quire.server.registry.engines import RegisteredEngine
from quire.server.registry.model_registry import ModelRegistry, RegisteredModel
from quire.server.registry.model_table import Entry
from quire.server.registry.stored_models import StoredModels

if TYPE_CHECKING:
    from quire.llm.memory_needs import MemoryNeeds
    from quire.llm.replicas.replicated_engine import ReplicatedEngine

#: Of a model: one engine or several.
ServedEngine: TypeAlias = "EngineProxy | ReplicatedEngine"


@dataclass(frozen=True, slots=True)
class EngineLoader:
    """Loads the engines of models.

    Attributes:
        options: Of the server.
        weights: By which models divide the cores.
        waiting: Processes that wait to load an engine.
    """

    options: ServerOptions
    weights: CoreWeights
    waiting: list[ChildProcess]

    def load(self, config: EngineConfig, loading: Loading) -> ServedEngine:
        """Load a model's engine, or engines.

        Raises:
            QuireError: One cannot be loaded.
        """
        options, parallel = self.options, config.parallel
        if parallel.data_parallel_size == 1 and options.num_engines is None:
            return self._load_one(0, config, loading)
        # Imported where they are needed: one engine starts without them.
        from quire.llm.replicas.elsewhere import engines_elsewhere
        from quire.llm.replicas.loading import load_replicas
        from quire.llm.replicas.roles import Roles

        num_prefill, num_outputs = options.num_engines or (0, parallel.data_parallel_size)
        parallel = replace(parallel, data_parallel_size=num_outputs + num_prefill)
        config = replace(config, parallel=parallel)
        roles = Roles(
            num_prefill,
            options.disaggregate_tokens,
            options.long_prompt_replicas,
            options.long_prompt_tokens,
            options.disaggregate_transport,
        )
        machine = read_machine()
        others = engines_elsewhere(config, machine, num_prefill, options.log_format, loading)
        if others is not None and parallel.places_engines:
            config = replace(config, parallel=replace(parallel, master_addr=others.address[0]))
        launchers = {} if others is None else others.launchers()

        def load(number: int, config: EngineConfig, loading: Loading) -> EngineProxy:
            return self._load_one(number, config, loading, launchers.get(number))

        return load_replicas(config, machine, loading, load, roles, min(launchers, default=None))

    def _load_one(
        self,
        number: int,
        config: EngineConfig,
        loading: Loading,
        launcher: EngineLauncher | None = None,
    ) -> EngineProxy:
        options = self.options
        if self.waiting and number == 0:
            launcher = ChildLauncher(self.waiting.pop())
        return EngineProxy(
            config,
            watchdog_timeout=options.watchdog_timeout,
            log_format=options.log_format,
            grammar_timeout=options.grammar_compilation_timeout,
            niceness=self.weights.niceness(model_names(config.model)[0]),
            loading=loading,
            launcher=launcher,
            meanwhile=_import_routes,
        )


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
    alone = _is_alone(configs, options, named)
    _check_roles(configs, options)
    parallel = configs[0].parallel
    is_elsewhere = parallel.data_parallel_size > 1 and parallel.places_engines
    if (parallel.deals_engines or is_elsewhere) and not alone:
        flag = "--nnodes" if parallel.deals_engines else "--distributed-executor-backend ray"
        raise ConfigError(
            f"[config] {flag} with --data-parallel-size must come with one MODEL that is loaded at "
            "the start; got several, none, or --load-on-demand."
        )
    shared = Shared(options, keys)
    waiting = [] if process is None else [process]

    load = EngineLoader(options, weights, waiting).load
    on_demand = options.load_on_demand
    folders = _adapter_folders(configs[0], options, alone)
    if alone:
        engine = load(configs[0], loading)
        service = Service(engine, engine.config, shared)
        service.adapters.add_folders(folders, engine)
        return OneModel(service)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                "[config] models that are served together must have different names; got "
                f"{name} twice. Rename a folder or file, or link to it."
            )
    memory = SharedMemory.measure(configs[0].cache, weights)
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
            registry.add(model)
            registry.load_at_start(model, loading)
    else:
        engine = load(memory.engine_config(configs[0]), loading)
        registry.add_loaded(memory.register_loaded(configs[0], engine), engine)
    for name in options.preload:
        loading.begin()
        registry.preload(name, loading)
    return registry


def _is_alone(configs: Sequence[EngineConfig], options: ServerOptions, named: bool) -> bool:
    """Return whether one model is loaded at the start and no other one ever."""
    return named and len(configs) == 1 and not options.load_on_demand


def _check_roles(configs: Sequence[EngineConfig], options: ServerOptions) -> None:
    """Refuse roles of engines that cannot be.

    Raises:
        ConfigError: There are several models, or the engines are counted twice, or too few.
    """
    _, num_engines = options.num_engines or (0, configs[0].parallel.data_parallel_size)
    if options.long_prompt_replicas >= num_engines and options.long_prompt_replicas:
        raise ConfigError(
            "[config] --long-prompt-replicas must be less than the engines that there are "
            f"({num_engines}, by --data-parallel-size or --disaggregate); got "
            f"{options.long_prompt_replicas}."
        )
    if options.disaggregate is None:
        return
    if len(configs) > 1 or options.load_on_demand:
        raise ConfigError(
            "[config] --disaggregate must come with one MODEL that is loaded at the start; got "
            "several, or --load-on-demand."
        )
    parallel, num_prefill = configs[0].parallel, (options.num_engines or (0, 0))[0]
    count = parallel.data_parallel_size
    if parallel.deals_engines:
        own = parallel.engines_of(0)
        if count != num_prefill + num_engines or num_engines > len(own):
            raise ConfigError(
                "[config] --disaggregate with --nnodes must come with --data-parallel-size "
                f"{num_prefill + num_engines}, all of its engines, of which those for outputs fit "
                f"machine 0; got {count} engines, {len(own)} on each machine."
            )
    elif count > 1:
        raise ConfigError(
            "[config] --disaggregate says how many engines there are; got --data-parallel-size "
            f"{count}, too. Leave one out."
        )
    if not configs[0].cache.enable_prefix_caching:
        raise ConfigError(
            "[config] --disaggregate must come with prefix caching, by which blocks are found; "
            "got --no-enable-prefix-caching."
        )


def _adapter_folders(
    config: EngineConfig, options: ServerOptions, alone: bool
) -> list[NamedFolder]:
    """Return the adapters that are there from the start.

    Raises:
        ConfigError: Settings of adapters contradict each other, or there are several models.
    """
    enabled = config.adapters.enable_lora
    if enabled and not alone:
        raise ConfigError(
            "[config] --enable-lora must come with one MODEL that is loaded at the start; got "
            "several, none, or --load-on-demand."
        )
    if not enabled and (options.lora_modules or options.allow_runtime_lora_updating):
        flag = "--lora-modules" if options.lora_modules else "--allow-runtime-lora-updating"
        raise ConfigError(f"[config] {flag} must come with --enable-lora; got it without.")
    return parse_modules(options.lora_modules)


def _import_routes() -> None:
    """Import what answers requests: a tenth of a second that nobody waits for."""
    import quire.server.app  # noqa: F401


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """What several models share.

    Attributes:
        machine: As it was measured.
        budget_bytes: For all of them.
        weights: By which they divide the cores.
    """

    machine: Machine
    budget_bytes: int
    weights: CoreWeights

    @classmethod
    def measure(cls, cache: CacheOptions, weights: CoreWeights) -> SharedMemory:
        """Look what there is now."""
        machine = read_machine()
        budget = budget_from_total(machine.free_bytes, cache.gpu_memory_utilization)
        return cls(machine, cache.memory or budget, weights)

    def register(self, config: EngineConfig, keep_alive: float | None) -> RegisteredModel:
        """Return a model that comes and goes: it gets half of all, so that two fit where they can.

        One that needs more than there is is refused when a request names it.
        """
        # Imported where it is needed: with one model the server loads no kernels.
        from quire.llm.memory_needs import PROCESS_BYTES

        need = self._needs(config)
        grant = min(need.most, max(need.least, self.budget_bytes // 2 - PROCESS_BYTES))
        return self._registered(config, grant, PROCESS_BYTES, keep_alive=keep_alive)

    def register_together(self, configs: Sequence[EngineConfig]) -> list[RegisteredModel]:
        """Return models that stay; those with the same engine get its memory once.

        Raises:
            ConfigError: They do not fit together.
        """
        from quire.llm.memory_needs import PROCESS_BYTES, share_memory

        engines = {self.identity(config): config for config in reversed(configs)}
        needs = [self._needs(config) for config in engines.values()]
        grants = dict(zip(engines, share_memory(needs, self.budget_bytes), strict=True))
        return [
            self._registered(config, grants[self.identity(config)], PROCESS_BYTES, pinned=True)
            for config in configs
        ]

    def register_loaded(self, config: EngineConfig, engine: ServedEngine) -> RegisteredModel:
        """Return a model whose engine is loaded and stays, with the memory that it took."""
        pools = [
            value
            for name, value in engine.stats().items()
            if stem_of(name) == "memory_bytes" and isinstance(value, int | float)
        ]
        return self._registered(config, int(sum(pools)), 0, pinned=True, of_engine=engine.config)

    def engine_config(self, config: EngineConfig) -> EngineConfig:
        """Return the settings by which a model's engine is loaded.

        They name its files, not the model: what goes with its name is for the requests that use
        the name, and may change.
        """
        options = config.model
        path = str(resolve_model(options.model, options.revision).absolute())
        names = model_names(options)[:1]  # for the log, and by which the cores are divided
        return replace(
            config, model=replace(options, model=path, revision=None, served_model_name=names)
        )

    def identity(self, config: EngineConfig) -> Hashable:
        """Return what is equal for models that have the same engine.

        All settings count but for the names, so that a setting which differs between models can
        be none that the engine of another ignores; and the files must not have changed since.
        """
        config = self.engine_config(config)
        niceness = self.weights.niceness(config.model.served_model_name[0])
        nameless = replace(config, model=replace(config.model, served_model_name=()))
        return nameless, file_state(Path(config.model.model)), niceness

    def _needs(self, config: EngineConfig) -> MemoryNeeds:
        """Return what the engines of a model need together, but for one process."""
        from quire.llm.memory_needs import PROCESS_BYTES, MemoryNeeds, memory_needs
        from quire.llm.replicas.sharing import find_sharings

        parallel = config.parallel
        count = parallel.data_parallel_size
        sharing = find_sharings(config, count)[0]
        own = replace(config, parallel=replace(parallel, data_parallel_size=1), sharing=sharing)
        need, processes = memory_needs(own, self.machine), (count - 1) * PROCESS_BYTES
        return MemoryNeeds(count * need.least + processes, count * need.most + processes)

    def _registered(
        self,
        config: EngineConfig,
        grant: int,
        process_bytes: int,
        *,
        pinned: bool = False,
        keep_alive: float | None = None,
        of_engine: EngineConfig | None = None,
    ) -> RegisteredModel:
        """Return a model whose engine gets ``grant`` bytes, and its process ``process_bytes``."""
        entry = Entry(model_names(config.model)[0], grant + process_bytes, keep_alive, pinned)
        of_engine = of_engine or self.engine_config(config)
        granted = replace(of_engine, cache=replace(config.cache, memory=grant))
        engine = RegisteredEngine(entry, granted, self.identity(config))
        renew = partial(
            self._registered, config, grant, process_bytes, pinned=pinned, keep_alive=keep_alive
        )
        return RegisteredModel(config, engine, renew=renew)
