"""How much memory engines will take, known before any is started, and how several share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.core.machine import Machine
from quire.core.memory_budget import MemoryDemand, format_bytes
from quire.core.resolve import ResolvedConfig, resolve
from quire.kernels.registry import create_backend
from quire.llm.inferred_methods import infer_methods
from quire.models.config_reader import read_model_config
from quire.models.hub import resolve_model
from quire.runner.loaded_drafts import find_drafts
from quire.runner.loaded_heads import find_heads, with_heads
from quire.runner.loaded_model import expected_demand
from quire.runner.memory import least_demand
from quire.runner.sharing.placement import SharedPart

#: An engine's process and those that try its grammars, apart from weights, scratch and KV cache.
PROCESS_BYTES = 160 * 2**20


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """What an engine takes, in bytes, without its process.

    Attributes:
        least: With less it does not run.
        most: More is of no use to it.
    """

    least: int
    most: int


def engine_demand(
    path: Path, config: EngineConfig, machine: Machine
) -> tuple[MemoryDemand, ResolvedConfig]:
    """Return what an engine of the model at ``path`` will need, and its settings.

    Raises:
        ModelLoadError: It cannot be used.
        ConfigError: A setting is impossible.
    """
    model_config = read_model_config(path)
    resolved = resolve(config, machine, model_config)
    backend = create_backend(resolved.device, threads=1)
    part = None if config.sharing is None else SharedPart(config.sharing)
    demand = expected_demand(path, backend, model_config, resolved, part)
    demand = with_heads(demand, find_heads(path, model_config, resolved, backend.activation_dtype))
    for draft in find_drafts(path, model_config, resolved, machine):
        demand = demand.with_model(draft.demand(backend))
    return demand, resolved


def memory_needs(config: EngineConfig, machine: Machine) -> MemoryNeeds:
    """Return what the engine of ``config`` will need; no weights are read.

    Raises:
        ModelLoadError: There is no such model, or it cannot be used.
        ConfigError: A setting is impossible.
    """
    path = resolve_model(config.model.model, config.model.revision)
    demand, resolved = engine_demand(path, infer_methods(config), machine)
    least = least_demand(resolved, demand)
    if config.cache.kv_cache_memory_bytes is not None:
        exact = demand.fixed_bytes + config.cache.kv_cache_memory_bytes
        return MemoryNeeds(exact, exact)
    num_blocks = config.scheduler.max_num_seqs * demand.spec.num_blocks(demand.max_model_len) + 1
    most = demand.fixed_bytes + num_blocks * demand.block_bytes
    return MemoryNeeds(least.least_bytes, most)


def share_memory(needs: Sequence[MemoryNeeds], budget_bytes: int) -> list[int]:
    """Return what each of several engines gets that run at the same time.

    Each gets the least it needs; what is left is divided evenly, as far as it is of use.

    Raises:
        ConfigError: They do not fit together.
    """
    grants = [need.least for need in needs]
    left = budget_bytes - len(grants) * PROCESS_BYTES - sum(grants)
    if left < 0:
        raise ConfigError(
            f"[config] models that are served together must fit in {format_bytes(budget_bytes)}; "
            f"got {format_bytes(budget_bytes - left)}. Raise --memory, lower --max-model-len, or "
            "give --load-on-demand, which holds some at a time."
        )
    wanting = sorted(range(len(needs)), key=lambda i: needs[i].most - needs[i].least)
    for position, index in enumerate(wanting):
        part = min(needs[index].most - needs[index].least, left // (len(wanting) - position))
        grants[index] += part
        left -= part
    return grants
