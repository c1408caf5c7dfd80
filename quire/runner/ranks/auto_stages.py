"""``--device-map auto``: settings with stages that fit the memory of devices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.kernels.registry import create_backend
from quire.planner.device_map import Room, map_line, place_layers
from quire.planner.memory_budget import MemoryDemand
from quire.runner.memory.loaded_drafts import find_drafts
from quire.runner.memory.loaded_heads import find_heads, with_heads
from quire.runner.memory.loaded_model import expected_demand, stage_demand
from quire.runner.memory.memory_plan import useful_memory
from quire.settings.config import EngineConfig
from quire.settings.parallel_options import Device, read_max_memory
from quire.settings.resolve import ResolvedConfig, resolve
from quire.system.machine import Machine


def map_devices(
    folder: Path, config: EngineConfig, model_config: ModelConfig, machine: Machine
) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return the settings with stages by memory, and a line that names them, for ``auto``.

    Settings without ``auto`` are returned as they are. No weights are read.

    Raises:
        ConfigError: The devices do not hold the model, or a setting is impossible.
        NoKernelError: A device cannot be used.
    """
    if config.parallel.device_map is None:
        return config, ()
    for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override"):
        if getattr(config.cache, name) is not None:
            raise ConfigError(
                "[config] --device-map auto makes room for --max-model-len tokens; got "
                f"--{name.replace('_', '-')} {getattr(config.cache, name)} as well, a size of "
                "the KV cache. Leave one out."
            )
    resolved = resolve(config, machine, model_config)
    needs = _Needs(folder, model_config, resolved, machine)
    placed = place_layers(model_config.num_layers, needs.of_layers, _rooms(resolved))
    parallel = replace(config.parallel, device_map=None, max_memory=None)
    memory = config.cache.memory
    if len(placed) > 1:
        parallel = parallel.of_stages(
            [one.layers for one in placed],
            [one.device for one in placed],
            [one.room_bytes for one in placed],
        )
    elif config.parallel.max_memory is not None:
        device = cast(Device, placed[0].device)
        parallel, memory = replace(parallel, device=device), placed[0].room_bytes
    config = replace(config, parallel=parallel, cache=replace(config.cache, memory=memory))
    return config, (map_line(placed),)


def _rooms(resolved: ResolvedConfig) -> list[Room]:
    """Return the devices with the bytes to use of each; all of them share this machine's memory."""
    text, left = resolved.config.parallel.max_memory, resolved.memory_bytes
    if text is None:
        return [Room(resolved.device, left)]
    rooms = []
    for device, most in read_max_memory(text).items():
        rooms.append(Room(device, min(most, left)))
        left -= rooms[-1].num_bytes
    return rooms


class _Needs:
    """The memory that a checkpoint's layers will take.

    Args:
        folder, model_config: The model.
        resolved: Settings of the rank.
        machine: The machine's memory and processors.
    """

    def __init__(
        self, folder: Path, model_config: ModelConfig, resolved: ResolvedConfig, machine: Machine
    ) -> None:
        self._folder, self._model_config, self._resolved = folder, model_config, resolved
        self._drafts = find_drafts(folder, model_config, resolved, machine)
        self._backend = cache(lambda device: create_backend(device, threads=1))
        self.of_layers = cache(self._of_layers)

    def _of_layers(self, device: str, layers: range) -> int:
        return useful_memory(self._resolved, self._demand(device, layers))[0]

    def _demand(self, device: str, layers: range) -> MemoryDemand:
        backend, config, resolved = self._backend(device), self._model_config, self._resolved
        if len(layers) == config.num_layers:
            demand = expected_demand(self._folder, backend, config, resolved)
        else:
            demand = stage_demand(self._folder, backend, config, resolved, layers)
        if layers[0] > 0:
            return demand
        # The process that has the requests also proposes tokens.
        heads = find_heads(self._folder, config, resolved, backend.activation_dtype)
        demand = with_heads(demand, heads)
        for draft in self._drafts:
            demand = demand.with_model(draft.demand(backend))
        return demand
