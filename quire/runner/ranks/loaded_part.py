"""A rank's part of a model, loaded, with the memory that it may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.planner.memory_budget import MemoryDemand
from quire.runner.memory.adapter_placing import AdapterReader, create_reader
from quire.runner.memory.loaded_model import LoadedModel, load
from quire.runner.memory.memory_plan import MemoryPlan, plan_memory
from quire.runner.memory.model_part import ModelPart
from quire.settings.config import EngineConfig
from quire.settings.encoder_settings import fit_to_model
from quire.settings.resolve import resolve
from quire.system.machine import read_machine


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """A rank's model, memory and adapters.

    Attributes:
        model: The rank's part of the model.
        demand: Bytes that the part takes.
        memory: Plan of the rank's memory, with the number of blocks that fit.
        reader: Reader of adapters; None where there are none.
    """

    model: LoadedModel
    demand: MemoryDemand
    memory: MemoryPlan
    reader: AdapterReader | None


def load_part(folder: Path, config: EngineConfig, rank_part: ModelPart) -> LoadedPart:
    """Load a rank's part of a checkpoint.

    Args:
        folder: A folder or a GGUF file.
        config: The rank's settings, memory and threads given.
        rank_part: The part to load.

    Raises:
        ConfigError, ModelLoadError: The part cannot be loaded.
    """
    machine, model_config = read_machine(), read_model_config(folder)
    config = fit_to_model(config, model_config)
    resolved = resolve(config, machine, model_config)
    backend = create_backend(resolved.device, threads=resolved.threads)
    model = load(folder, backend, resolved, part=rank_part)
    memory = plan_memory(resolved, model.demand, resolved.memory_bytes)
    reader = create_reader(model.decoder, backend, config.adapters, folder)
    return LoadedPart(model, model.demand, memory, reader)
