"""Whether weights are likely to fit this machine, told by the size of their file alone."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.counts import format_bytes
from quire.core.errors import ModelLoadError
from quire.planner.memory_budget import budget_from_total
from quire.settings.config import EngineConfig
from quire.store.pull_progress import OnProgress, PullProgress
from quire.system.machine import read_machine

#: Tokens of context that a model is to have room for.
CONTEXT = 4096
#: Packed weights take about as much as their file, the rest is tables and what grows with them.
PER_BYTE = 1.1
#: Scratch and the KV cache of :data:`CONTEXT` tokens: of small models twice their file, of all that
#: have up to some ten billion parameters about as much as this.
MOST_BESIDES = 700 * 10**6


def likely_bytes(nbytes: int) -> int:
    """Return the memory that a model will take whose weights are a quantized file of ``nbytes``."""
    return int(PER_BYTE * nbytes) + min(2 * nbytes, MOST_BESIDES)


def room_in(memory_bytes: int) -> int:
    """Return what an engine would take of that much memory with the default settings."""
    return budget_from_total(memory_bytes, EngineConfig().cache.gpu_memory_utilization)


def free_room() -> int:
    """Return what an engine would take of the memory that is free now."""
    return room_in(read_machine().free_bytes)


def check_fit(
    what: str,
    nbytes: int,
    on_progress: OnProgress,
    *,
    must_fit: bool,
    instead: Callable[[int], str] = lambda room_bytes: "",
) -> None:
    """Warn of a model that is likely not to fit, before it is fetched.

    Args:
        what: The model, as it was asked for.
        nbytes: Bytes of its weights' files.
        on_progress: Function called with the warning, where too little memory is free now.
        must_fit: Whether the model is to be loaded on this machine.
        instead: Function that says what fits in that many bytes.

    Raises:
        ModelLoadError: The model must fit, and this machine never has the memory for its weights.
    """
    machine, needed = read_machine(), likely_bytes(nbytes)
    total, free = room_in(machine.total_bytes), room_in(machine.free_bytes)
    if must_fit and nbytes > total:
        raise ModelLoadError(
            f"[load] a model must fit in this machine's memory, {format_bytes(total)}; got {what}, "
            f"whose weights are {format_bytes(nbytes)}. Take a smaller one"
            + (f" ({other})" if (other := instead(total)) else "")
            + "; quire pull fetches this one all the same."
        )
    if needed > free:
        said = f"{what} needs about {format_bytes(needed)} with {CONTEXT:,} tokens of context, and "
        said += f"{format_bytes(free)} are free: it may not fit"
        on_progress(PullProgress(said + (f"; {other}" if (other := instead(free)) else "")))
