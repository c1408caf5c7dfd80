"""A folder of floats to a folder of few bits, from end to end; who asks, and how, is not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import quire
from quire.kernels.registry import create_backend
from quire.quantizing import output
from quire.quantizing.card import CardFacts, model_card
from quire.quantizing.inputs.layer_inputs import Bar
from quire.quantizing.quantization_run import QuantizationJob, QuantizationRun, Result
from quire.quantizing.resumable_run import Unfinished
from quire.system.machine import read_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job, and what the card says of it.

    Attributes:
        job: The matrices to quantize, and how.
        source: The source as it was named.
        command: The command that makes the same result again.
        language: Language of the command.
        calibration: Origin and amount of the calibration text; empty without one.
        threads: Number of threads; None for all cores.
    """

    job: QuantizationJob
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
    """Quantize a checkpoint layer by layer; the same call resumes one that was stopped.

    Args:
        folder: Safetensors of floats.
        out: A new or an empty folder, or that of a call that was stopped.
        order: The order to carry out.
        bar: The progress bar.
        tell: A function called with each notice on what differs from the request, at once.
        measure: A function called when ``out`` can be loaded; returns lines of figures for the
            card.

    Raises:
        ConfigError: The source is quantized already, the order is impossible, or ``out`` holds
            something else.
        ModelLoadError: The source cannot be read, or a weight is infinite or NaN.
    """
    run = QuantizationRun(folder, order.job)
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
