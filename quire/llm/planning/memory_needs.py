"""The memory that the engines of a model will take, planned from its checkpoint."""

from __future__ import annotations

from dataclasses import replace

from quire.llm.planning.model_plan import plan_model
from quire.planner.memory_needs import MemoryNeeds
from quire.settings.config import EngineConfig
from quire.system.machine import Machine


def memory_needs(config: EngineConfig, machine: Machine) -> MemoryNeeds:
    """Return what the engines of ``config`` will need, with all their ranks; no weights are read.

    Raises:
        ModelLoadError: The model does not exist, or it cannot be used.
        ConfigError: A setting is impossible.
    """
    parallel = config.parallel
    count = parallel.data_parallel_size
    own = replace(config, parallel=replace(parallel, data_parallel_size=1))
    least, most = plan_model(own, machine).useful_memory()
    return MemoryNeeds(count * least, count * most, count * parallel.layout.size)
