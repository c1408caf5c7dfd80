"""A folder of floats to a folder of few bits, from end to end; who asks, and how, is not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import quire
from quire.core.machine import read_machine
from quire.kernels.registry import create_backend
from quire.quantizing import output
from quire.quantizing.card import CardFacts, model_card
from quire.quantizing.layer_inputs import Bar
from quire.quantizing.run import Job, Result, Run
from quire.quantizing.unfinished import Unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked, and what the card says of it.

    Attributes:
        job: What is quantized, and how.
        source: As it was named.
        command: What makes the same again.
        language: Of the command.
        calibration: Where text was from, and how much; empty without.
        threads: None for all cores.
    """

    job: Job
    source: str
    command: str
    language: str = "bash"
    calibration: str = ""
    threads: int | None = None


def quantize_checkpoint(
    folder: Path,
    out: Path,
    order: Order,
    bar: Bar,
    tell: Callable[[str], None],
    measure: Callable[[], list[str]] = list,
) -> Result:
    """Quantize a checkpoint layer by layer; the same call goes on with one that was stopped.

    Args:
        folder: Safetensors of floats.
        out: A new or an empty folder, or that of a call that was stopped.
        order: What is asked.
        bar: Shows how far it is.
        tell: Takes what differs from what was asked for, as soon as it is known.
        measure: Called when ``out`` can be loaded; returns what was measured, for the card.

    Raises:
        ConfigError: The source is quantized already, the order cannot be, or ``out`` holds
            something else.
        ModelLoadError: The source cannot be read, or a weight is infinite or NaN.
    """
    run = Run(folder, order.job)
    told = list(run.notices)
    for notice in told:
        tell(notice)
    unfinished = Unfinished(out, run.identity)
    threads = order.threads or read_machine().num_cores
    with unfinished.held():
        result = run.execute(create_backend("cpu", threads=threads), unfinished, bar)
        _write(folder, out, result, bar)
        facts = CardFacts(
            source=order.source,
            command=order.command,
            language=order.language,
            version=quire.__version__,
            calibration=order.calibration,
            measured=measure(),
        )
        output.write_card(out, model_card(facts, result, order.job.format.name))
        unfinished.finish()
    for notice in result.notices:
        if notice not in told:
            tell(notice)
    return result


def _write(folder: Path, out: Path, result: Result, bar: Bar) -> None:
    total = sum(tensor.nbytes for tensor in result.tensors.values())
    with bar("write", total) as advance:
        output.write_weights(out, result.tensors, lambda count: advance(count, ""))
    output.copy_files(out, folder)
    output.write_config(out, folder, result.config, result.model_config)
