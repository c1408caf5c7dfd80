"""Plan of an engine and of the memory of its ranks, made before any rank is started or loaded.

``quire serve --dry-run``, the server that divides its memory, and the engine itself plan by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.planner.memory_budget import MemoryDemand
from quire.runner.blocks.tiers.create_tiers import check_tiers
from quire.runner.memory.adapter_placing import expected_budget
from quire.runner.memory.loaded_drafts import Draft, find_drafts, plan_with_drafts
from quire.runner.memory.loaded_heads import FoundHead, find_heads, with_heads
from quire.runner.memory.loaded_model import expected_demand
from quire.runner.memory.memory_plan import MemoryPlan, kept_window, useful_memory
from quire.runner.memory.model_part import RankPlace
from quire.runner.ranks.auto_stages import map_devices
from quire.settings.config import EngineConfig
from quire.settings.encoder_settings import fit_to_model
from quire.settings.resolve import ResolvedConfig, resolve
from quire.system.machine import Machine


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Plan of one rank's model and memory.

    Attributes:
        resolved: Settings of the rank.
        demand: Memory of the rank's part of the model, of draft heads and adapters.
        heads: Draft heads; the first rank has them, and draft models.
        drafts: Draft models, with the memory of each.
    """

    resolved: ResolvedConfig
    demand: MemoryDemand
    heads: tuple[FoundHead, ...]
    drafts: Mapping[Draft, MemoryDemand]

    @property
    def whole(self) -> MemoryDemand:
        """The demand with draft models."""
        demand = self.demand
        for own in self.drafts.values():
            demand = demand.with_model(own)
        return demand

    def divide(self, machine: Machine) -> MemoryPlan:
        """Return the division of the rank's memory.

        Raises:
            ConfigError: The rank does not fit in its memory.
        """
        device_bytes = max(machine.free_bytes, self.resolved.memory_bytes)
        return plan_with_drafts(self.resolved, self.demand, self.drafts, device_bytes)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Plan of an engine.

    Attributes:
        model_config: The model's shape.
        resolved: The settings, with stages by memory where ``--device-map`` asks for them.
        each: The settings of each rank before :meth:`EngineConfig.of_rank`.
        ranks: Plans of the ranks, in their order.
        choices: A line for each value that was chosen rather than given.
    """

    model_config: ModelConfig
    resolved: ResolvedConfig
    each: EngineConfig
    ranks: tuple[RankPlan, ...]
    choices: tuple[str, ...]

    def check_memory(self, machine: Machine) -> None:
        """Refuse a plan whose ranks do not fit in their memory.

        Raises:
            ConfigError: A rank does not fit.
        """
        for rank in self.ranks:
            rank.divide(machine)

    def useful_memory(self) -> tuple[int, int]:
        """Return the least ``--memory`` with which all ranks fit, and the most they can use."""
        parallel = self.resolved.config.parallel
        found = [useful_memory(rank.resolved, rank.whole) for rank in self.ranks]
        if parallel.stage_memory is not None:
            exact = sum(rank.resolved.memory_bytes for rank in self.ranks)
            return exact, exact
        least, most = (max(values) for values in zip(*found, strict=True))
        return parallel.machine_ranks * least, parallel.machine_ranks * most


def plan_engine(folder: Path, config: EngineConfig, machine: Machine) -> EnginePlan:
    """Return the plan of an engine of a checkpoint; no weights are read.

    Args:
        folder: The checkpoint, a folder or a GGUF file.
        config: The engine's settings.
        machine: The memory and processors that may be used.

    Raises:
        ConfigError: The settings contradict each other, or do not fit the model.
        ModelLoadError: The checkpoint cannot be used.
        NoKernelError: The backend cannot be used.
    """
    model_config = read_model_config(folder)
    config = fit_to_model(config, model_config)
    config, mapped = map_devices(folder, config, model_config, machine)
    resolved = resolve(config, machine, model_config)
    check_tiers(config.offload)
    if config.transfer is not None:
        _check_transfer(config, model_config)
    each = _settings_of_each(config, resolved)
    ranks = [
        _plan_rank(folder, rank, each, model_config, machine)
        for rank in range(config.parallel.layout.size)
    ]
    return EnginePlan(model_config, resolved, each, tuple(ranks), (*mapped, *resolved.choices))


def _check_transfer(config: EngineConfig, model_config: ModelConfig) -> None:
    """Refuse a model that would compute prompts again that another engine has computed for it."""
    is_windowed = kept_window(model_config, config.cache) is not None
    if is_windowed or not model_config.generates:
        kind = "whose layers all have a window" if is_windowed else "that generates nothing"
        raise ConfigError(
            "[config] --disaggregate needs a model whose KV blocks are found by their content; got "
            f"{model_config.architecture}, {kind}. Leave --disaggregate out."
        )


def _settings_of_each(config: EngineConfig, resolved: ResolvedConfig) -> EngineConfig:
    parallel, cache = config.parallel, config.cache
    if parallel.layout.size == 1:
        return config
    kv_bytes = cache.kv_cache_memory_bytes
    own_cache = replace(
        cache,
        memory=resolved.memory_bytes // parallel.machine_ranks,
        kv_cache_memory_bytes=None if kv_bytes is None else kv_bytes // parallel.layout.size,
    )
    return replace(
        config,
        cache=own_cache,
        parallel=replace(parallel, threads=resolved.threads),
        memory_parts=config.memory_parts * parallel.machine_ranks,
    )


def _plan_rank(
    folder: Path, rank: int, each: EngineConfig, model_config: ModelConfig, machine: Machine
) -> RankPlan:
    config = each.of_rank(rank)
    resolved = resolve(config, machine, model_config)
    backend = create_backend(resolved.device, threads=1)
    part = RankPlace(rank, config.parallel) if config.parallel.layout.size > 1 else None
    demand = expected_demand(folder, backend, model_config, resolved, part)
    layers = None if part is None else part.layers(model_config.num_layers)
    if rank > 0:
        return RankPlan(resolved, demand, (), {})
    # The process that has the requests proposes tokens, and keeps count of adapters.
    adapter_bytes = expected_budget(folder, config.adapters, layers)
    demand = replace(demand, scratch_bytes=demand.scratch_bytes + adapter_bytes)
    heads = find_heads(folder, model_config, resolved, backend.activation_dtype)
    drafts = find_drafts(folder, model_config, resolved, machine)
    return RankPlan(
        resolved,
        with_heads(demand, heads),
        tuple(heads),
        {draft: draft.demand(backend) for draft in drafts},
    )
