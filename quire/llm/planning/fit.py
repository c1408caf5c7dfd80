"""Whether a model on disk fits this machine, before it is loaded; it decides nothing."""

from __future__ import annotations

from pathlib import Path

from quire.planner.memory_fit import MemoryFit, fit_demand
from quire.runner.memory.engine_plan import plan_engine
from quire.settings.config import EngineConfig
from quire.system.machine import Machine


def fit_files(path: Path, machine: Machine) -> MemoryFit:
    """Return whether the model in a folder or GGUF file fits, with the default settings.

    Raises:
        UnsupportedArchitectureError: The model's architecture is not implemented.
        ModelLoadError: The model cannot be read.
    """
    plan = plan_engine(path, EngineConfig(), machine)
    resolved = plan.resolved
    return fit_demand(plan.ranks[0].whole, resolved.max_model_len, resolved.memory_bytes)
