"""Advice on the weight format for a CPU, from what this engine measured, not from peak rates."""

from __future__ import annotations

from dataclasses import dataclass

from quire.planner.advice.measured_formats import (
    MEASURED_FORMATS,
    PROCESSOR,
    QUALITY_MODEL,
    SPEED_MODEL,
    MeasuredFormat,
)
from quire.planner.advice.weight_advice import ServingLoad, gigabytes, needed
from quire.planner.machine_speed import MachineSpeed

#: Most that perplexity may rise by for a format to be chosen for its speed.
MAX_LOSS = 0.02
#: Speeds nearer to the fastest than this are as good: rounds differ by as much.
CLOSE = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """A format on this machine.

    Attributes:
        measured: The measurements of the format.
        weight_bytes: Bytes of all weights.
        fits: Whether weights and the KV of the batch fit.
    """

    measured: MeasuredFormat
    weight_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class CpuAdvice:
    """The format to take, and why.

    Attributes:
        choice: The format's name; None where nothing fits.
        reasons: A sentence each, the most important first.
        rows: Every format that was measured.
        batch: The measured batch that is nearest to the one that shall run.
    """

    choice: str | None
    reasons: list[str]
    rows: list[Row]
    batch: int


def advise_cpu(memory: float, load: ServingLoad, speed: MachineSpeed | None) -> CpuAdvice:
    """Choose a format that fits, is about as fast as any and loses little; else the best that fits.

    Args:
        memory: Bytes for weights and KV.
        load: The load that shall run.
        speed: The speed of the machine, if it was measured.
    """
    kv_bytes = load.batch * load.kv_bytes
    rows = []
    for measured in MEASURED_FORMATS:
        weights = load.num_parameters * measured.bits / 8
        rows.append(Row(measured, weights, weights + kv_bytes <= memory))
    batch = min(rows[0].measured.decode, key=lambda each: abs(each - load.batch))
    fitting = [row for row in rows if row.fits]
    good = [row for row in fitting if row.measured.perplexity <= 1 + MAX_LOSS]
    if good:
        fastest = max(row.measured.decode[batch] for row in good)
        close = [row for row in good if row.measured.decode[batch] >= (1 - CLOSE) * fastest]
        chosen = min(close, key=lambda row: row.measured.perplexity)
        why = (
            f"Of the formats that fit and raise perplexity by at most {MAX_LOSS:.0%} the fastest "
            f"decodes {fastest:.2f} x bf16 at batch {batch:,}, and of those within {CLOSE:.0%} "
            f"({chosen.measured.decode[batch]:.2f} x) this one loses least, "
            f"{_loss(chosen.measured)}."
        )
    elif fitting:
        chosen = min(fitting, key=lambda row: row.measured.perplexity)
        why = (
            f"Memory is tight: of what fits in {gigabytes(memory)} it loses least, "
            f"{_loss(chosen.measured)} of perplexity."
        )
    else:
        chosen = min(rows, key=lambda row: row.weight_bytes)
        why = (
            f"Nothing fits: even {chosen.measured.bits:g} bits a weight need "
            f"{needed(chosen.weight_bytes, load)}, and there are {gigabytes(memory)}."
        )
    reasons = [why]
    if fitting:
        reasons.append(
            f"Memory: {needed(chosen.weight_bytes, load)} fit in {gigabytes(memory)}"
            f"{'.' if load.kv_bytes else '; KV is not counted, as a number has no shape.'}"
        )
        reasons.append(_batch(chosen.measured, speed))
    reasons.append(
        f"Speed was measured on {PROCESSOR} with {SPEED_MODEL}, quality with {QUALITY_MODEL}; "
        "measure your own with quire bench quant."
    )
    return CpuAdvice(chosen.measured.name if fitting else None, reasons, rows, batch)


def _loss(measured: MeasuredFormat) -> str:
    return f"{measured.perplexity - 1:.2%}"


def _batch(measured: MeasuredFormat, speed: MachineSpeed | None) -> str:
    gains = ", ".join(f"{ratio:.2f} x at {batch:,}" for batch, ratio in measured.decode.items())
    bound = ""
    if speed is not None:
        rows = speed.rows_at_ridge(round(measured.bits))
        bound = f"; on this machine arithmetic binds from {rows:.1f} sequences (quire doctor)"
    return f"Mind the batch: it decodes {gains} sequences, next to bf16{bound}."
