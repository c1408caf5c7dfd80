"""Room on this machine for weights, and a warning before some are fetched that will not fit."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.counts import format_bytes
from quire.core.errors import ModelLoadError
from quire.planner.memory_fit import CONTEXT, likely_bytes, room_in
from quire.store.pull_progress import OnProgress, PullProgress
from quire.system.machine import read_machine


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
