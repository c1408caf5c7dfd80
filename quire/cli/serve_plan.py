"""The plan of ``quire serve``: what it will load, for its start and for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from quire.checkpoints.file_state import file_state
from quire.core.errors import ConfigError
from quire.llm.replicas.roles import Roles
from quire.planner.memory_budget import budget_from_total
from quire.planner.memory_needs import MemoryNeeds, share_memory
from quire.server.generation.answer_parser import AnswerFormats
from quire.server.generation.scoring_methods import Scoring
from quire.server.generation.served_adapters import NamedFolder, parse_modules
from quire.server.observability.tracing import check_available
from quire.server.registry.core_weights import CoreWeights
from quire.server.server_options import ServerOptions
from quire.settings.cache_options import CacheOptions
from quire.settings.config import EngineConfig, ModelOptions
from quire.settings.resolve import check_memory
from quire.store.hub import resolve_model, served_name
from quire.system.machine import Machine, read_machine


@dataclass(frozen=True, slots=True)
class Grant:
    """The memory of a model's engines.

    Attributes:
        memory: Bytes for weights, scratch and KV of all engines together.
        process_bytes: Further bytes, for the engines' processes.
    """

    memory: int
    process_bytes: int

    def apply(self, config: EngineConfig) -> EngineConfig:
        """Return a model's settings with this memory."""
        return replace(config, cache=replace(config.cache, memory=self.memory))


@dataclass(frozen=True)
class ServingPlan:
    """The models to serve, with their settings.

    Attributes:
        configs: Settings of one model each, the default model first; ``data_parallel_size`` counts
            a model's engines of all roles.
        options: Settings of the server.
        named: Whether the models were chosen; else the first is there for want of others, and
            requests may name any model of the store.
        roles: Roles of a model's engines.
        weights: Weights by which models divide the cores.
        folders: Adapters that are there from the start.
        machine: The machine as it was measured.
    """

    configs: tuple[EngineConfig, ...]
    options: ServerOptions
    named: bool
    roles: Roles
    weights: CoreWeights
    folders: Sequence[NamedFolder]
    machine: Machine

    @property
    def is_alone(self) -> bool:
        """Whether one model is loaded at the start and no other one ever."""
        return self.named and len(self.configs) == 1 and not self.options.load_on_demand

    @cached_property
    def memory(self) -> MemoryShare:
        """The memory and cores that several models share."""
        return MemoryShare.measure(self.configs[0].cache, self.weights, self.machine)

    @cached_property
    def grants(self) -> Sequence[Grant]:
        """The memory of each model that shares it; empty where the first model has what it wants.

        Raises:
            QuireError: A model cannot be loaded, or the models do not fit together.
        """
        if self.options.load_on_demand:
            return [self.memory.grant_on_demand(config) for config in self.configs]
        if self.named and not self.is_alone:
            return self.memory.grant_together(self.configs)
        return ()

    @property
    def granted(self) -> Iterator[EngineConfig]:
        """The settings of each model, with the memory that it will have.

        Raises:
            QuireError: The same as in :attr:`grants`.
        """
        if not self.grants:
            yield from self.configs
        for config, grant in zip(self.configs, self.grants, strict=False):
            yield grant.apply(config)

    @property
    def is_checked_by_engine(self) -> bool:
        """Whether all that is loaded at the start is one process, which does :meth:`check`."""
        parallel = self.configs[0].parallel
        is_one = parallel.data_parallel_size * parallel.layout.size == 1
        return is_one and not (self.options.load_on_demand or len(self.configs) > 1 or self.folders)

    def check(self) -> None:
        """Refuse what cannot be loaded; no weights are read.

        Raises:
            QuireError: A model cannot be loaded, or they do not fit together.
        """
        from quire.llm.planning.model_plan import plan_model
        from quire.llm.replicas.load_replicas import own_engines
        from quire.llm.requests.adapter_references import AdapterReferences

        for config in self.granted:
            for own in own_engines(config, self.machine, self.roles):
                plan_model(own, self.machine).check_memory(self.machine)
            path = resolve_model(config.model.model, config.model.revision)
            reader = AdapterReferences(path, config.adapters)
            for folder in self.folders:
                reader.read(folder.name, folder.path)


def plan_serving(
    configs: Sequence[EngineConfig], options: ServerOptions, *, named: bool, has_keys: bool
) -> ServingPlan:
    """Return what is served, as far as settings alone tell.

    Args:
        configs: Settings of one model each, the default one first.
        options: Settings of the server.
        named: The models were chosen.
        has_keys: Clients need one.

    Raises:
        ConfigError: Settings do not go together.
    """
    if options.otlp_traces_endpoint is not None:
        check_available()
    if options.prefix_cache_isolation == "key" and not has_keys:
        raise ConfigError(
            "[config] --prefix-cache-isolation key must come with API keys; got none. Give "
            "--api-key, --api-key-file or QUIRE_API_KEY."
        )
    AnswerFormats.resolve(options, None)
    Scoring.check(options)
    weights = CoreWeights(options.core_weight)
    names = [first_name(config.model) for config in configs]
    if named and not options.load_on_demand:
        weights.check_known(names)
        if options.preload:
            raise ConfigError(
                "[config] --preload must come with --load-on-demand; got it without. All models "
                "that are named are loaded at once."
            )
    is_alone = named and len(configs) == 1 and not options.load_on_demand
    _check_roles(configs, options)
    _check_machines(configs, is_alone)
    folders = _adapter_folders(configs[0], options, is_alone)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                "[config] models that are served together must have different names; got "
                f"{name} twice. Rename a folder or file, or link to it."
            )
    num_prefill, num_outputs = options.num_engines or (0, 0)
    roles = Roles(
        num_prefill,
        options.disaggregate_tokens,
        options.long_prompt_replicas,
        options.long_prompt_tokens,
        options.disaggregate_transport,
    )
    if num_prefill:
        (config,) = configs
        parallel = replace(config.parallel, data_parallel_size=num_prefill + num_outputs)
        configs = [replace(config, parallel=parallel)]
    return ServingPlan(tuple(configs), options, named, roles, weights, folders, read_machine())


def first_name(options: ModelOptions) -> str:
    """Return the first of a model's names."""
    return (options.served_model_name or (served_name(options.model),))[0]


def _check_roles(configs: Sequence[EngineConfig], options: ServerOptions) -> None:
    """Refuse roles that a model's engines cannot have.

    Raises:
        ConfigError: Several models are given, or the engines are counted twice, or too few.
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
    if hiding := configs[0].cache.hides_blocks:
        raise ConfigError(
            "[config] --disaggregate moves KV blocks, which are found by their content; got "
            f"{hiding}, with which none is found. Leave one out."
        )


def _check_machines(configs: Sequence[EngineConfig], is_alone: bool) -> None:
    """Refuse several models whose engines or ranks would be on several machines.

    Raises:
        ConfigError: Engines or ranks of several models would be on several machines.
    """
    parallel = configs[0].parallel
    is_elsewhere = parallel.data_parallel_size > 1 and parallel.places_engines
    if (parallel.nnodes > 1 or is_elsewhere) and not is_alone:
        flag = "--nnodes" if parallel.nnodes > 1 else "--distributed-executor-backend ray"
        with_engines = " with --data-parallel-size" if parallel.data_parallel_size > 1 else ""
        raise ConfigError(
            f"[config] {flag}{with_engines} must come with one MODEL that is loaded at the start; "
            "got several, none, or --load-on-demand."
        )


def _adapter_folders(
    config: EngineConfig, options: ServerOptions, is_alone: bool
) -> list[NamedFolder]:
    """Return the adapters that are there from the start.

    Raises:
        ConfigError: Settings of adapters contradict each other, or there are several models.
    """
    enabled = config.adapters.enable_lora
    if enabled and not is_alone:
        raise ConfigError(
            "[config] --enable-lora must come with one MODEL that is loaded at the start; got "
            "several, none, or --load-on-demand."
        )
    if not enabled and (options.lora_modules or options.allow_runtime_lora_updating):
        flag = "--lora-modules" if options.lora_modules else "--allow-runtime-lora-updating"
        raise ConfigError(f"[config] {flag} must come with --enable-lora; got it without.")
    return parse_modules(options.lora_modules)


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The memory and cores that several models share.

    Attributes:
        machine: The machine as it was measured.
        budget_bytes: Bytes for all models together.
        weights: Weights by which the models divide the cores.
    """

    machine: Machine
    budget_bytes: int
    weights: CoreWeights

    @classmethod
    def measure(cls, cache: CacheOptions, weights: CoreWeights, machine: Machine) -> MemoryShare:
        """Return the memory that the machine and the settings allow.

        Raises:
            ConfigError: The settings ask for more memory than there is.
        """
        budget = budget_from_total(machine.free_bytes, cache.gpu_memory_utilization)
        budget = cache.memory or budget
        check_memory(budget, machine)
        return cls(machine, budget, weights)

    def grant_on_demand(self, config: EngineConfig) -> Grant:
        """Return the memory of a model that is loaded on demand: half of all, so that two may fit.

        One that needs more than there is is refused when a request names it.
        """
        need = self._needs(config)
        half = self.budget_bytes // 2 - need.process_bytes
        return Grant(min(need.most, max(need.least, half)), need.process_bytes)

    def grant_together(self, configs: Sequence[EngineConfig]) -> list[Grant]:
        """Return the memory of models that stay; those with the same engine get it once.

        Raises:
            ConfigError: The models do not fit together.
        """
        engines = {self.identity(config): config for config in reversed(configs)}
        needs = {identity: self._needs(config) for identity, config in engines.items()}
        shares = share_memory([*needs.values()], self.budget_bytes)
        grants = {
            identity: Grant(memory, need.process_bytes)
            for (identity, need), memory in zip(needs.items(), shares, strict=True)
        }
        return [grants[self.identity(config)] for config in configs]

    def engine_config(self, config: EngineConfig) -> EngineConfig:
        """Return the settings by which a model's engine is loaded.

        They name its files, not the model: what goes with its name is for the requests that use
        the name, and may change.
        """
        options = config.model
        path = str(resolve_model(options.model, options.revision).absolute())
        names = (first_name(options),)  # for the log, and by which the cores are divided
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
        # Imported where it is needed: with one model the server loads no kernels.
        from quire.llm.planning.memory_needs import memory_needs

        return memory_needs(config, self.machine)
