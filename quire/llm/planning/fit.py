"""Whether a model fits this machine, before it is loaded or even fetched; it decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from quire.runner.memory.engine_plan import plan_engine
from quire.settings.config import EngineConfig
from quire.store.likely_fit import likely_bytes, room_in
from quire.store.named_models import NamedModel, largest_in_family
from quire.system.machine import Machine


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory that a model needs, and the memory that there is.

    Attributes:
        needed_bytes: Weights, scratch and the KV cache of one block.
        budget_bytes: Bytes that an engine would take of the memory that is free now.
        context: Tokens of the longest request that fits; None if only the files tell.
    """

    needed_bytes: int
    budget_bytes: int
    context: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it can be loaded."""
        return self.needed_bytes <= self.budget_bytes


def fit_files(path: Path, machine: Machine) -> MemoryFit:
    """Return whether the model in a folder or GGUF file fits, with the default settings.

    Raises:
        UnsupportedArchitectureError: The model's architecture is not implemented.
        ModelLoadError: The model cannot be read.
    """
    plan = plan_engine(path, EngineConfig(), machine)
    demand, resolved = plan.ranks[0].whole, plan.resolved
    context = min(resolved.max_model_len, demand.longest_fitting(resolved.memory_bytes))
    least = replace(demand, max_model_len=1)
    return MemoryFit(least.least_bytes, resolved.memory_bytes, max(0, context))


def fit_named(model: NamedModel, machine: Machine) -> MemoryFit:
    """Return whether a model of the catalogue is likely to fit; only its size is known."""
    return MemoryFit(likely_bytes(model.nbytes), room_in(machine.free_bytes))


def largest_that_fits(model: NamedModel, machine: Machine) -> NamedModel | None:
    """Return the largest model of the same family that is likely to fit, or None."""
    return largest_in_family(model, room_in(machine.free_bytes))
