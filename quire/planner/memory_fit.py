"""Whether a model fits in memory: by its plan, or by the size of its file alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.planner.memory_budget import MemoryDemand, budget_from_total
from quire.settings.config import EngineConfig

#: Tokens of context that a model is to have room for, where only its file is known.
CONTEXT = 4096
#: Packed weights take about as much as their file, the rest is tables and what grows with them.
PER_BYTE = 1.1
#: Scratch and the KV cache of :data:`CONTEXT` tokens: of small models twice their file, of all that
#: have up to some ten billion parameters about as much as this.
MOST_BESIDES = 700 * 10**6


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


def fit_demand(demand: MemoryDemand, max_model_len: int, budget_bytes: int) -> MemoryFit:
    """Return whether a planned model fits in a budget, and the longest request that does."""
    context = min(max_model_len, demand.longest_fitting(budget_bytes))
    least = replace(demand, max_model_len=1)
    return MemoryFit(least.least_bytes, budget_bytes, max(0, context))


def fit_file(nbytes: int, free_bytes: int) -> MemoryFit:
    """Return whether the model of a quantized file of ``nbytes`` is likely to fit."""
    return MemoryFit(likely_bytes(nbytes), room_in(free_bytes))


def likely_bytes(nbytes: int) -> int:
    """Return the memory that a model will take whose weights are a quantized file of ``nbytes``."""
    return int(PER_BYTE * nbytes) + min(2 * nbytes, MOST_BESIDES)


def room_in(memory_bytes: int) -> int:
    """Return what an engine would take of that much memory with the default settings."""
    return budget_from_total(memory_bytes, EngineConfig().cache.gpu_memory_utilization)
