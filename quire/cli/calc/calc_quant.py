"""``quire calc advise-quant``: which weight format, on a named card or on this machine, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import click

from quire.cli.calc.calc_flags import COUNT, DTYPE, JSON, finite
from quire.cli.calc.calc_models import kv_spec, num_parameters, stated_parameters
from quire.cli.table import print_table
from quire.planner.advice.cpu_weight_advice import CpuAdvice, advise_cpu
from quire.planner.advice.named_cards import NAMED_CARDS
from quire.planner.advice.number_types import NUMBER_TYPES
from quire.planner.advice.weight_advice import Advice, Cards, FormatChoice, ServingLoad, advise


@click.command("advise-quant", short_help="Show which weight format to take, and why.")
@click.argument("model")
@click.option("--card", type=click.Choice(list(NAMED_CARDS), case_sensitive=False),
    help="The processor; default: this machine's.")  # fmt: skip
@click.option("--tensor-parallel-size", "-tp", type=COUNT, default=1, show_default=True,
    help="Cards that share the model.")  # fmt: skip
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Sequences at once.")
@click.option("--context", type=COUNT, default=4096, show_default=True,
    help="Tokens of each sequence.")  # fmt: skip
@click.option("--memory", type=COUNT, help="Memory of each card, or of the machine (24GB).")
@click.option("--fraction", type=click.FloatRange(0, 1, min_open=True), default=0.9,
    show_default=True, callback=finite,
    help="Part of the memory for weights and KV.")  # fmt: skip
@DTYPE
@JSON
def advise_quant(
    model: str, batch: int, context: int, dtype: str, as_json: bool, **place: Any
) -> None:
    """Show which weight format to take for MODEL, and why.

    MODEL is a name such as llama-3.1-8b, a folder or GGUF file of floats, or a number of parameters
    such as 70B. With --card the arithmetic decides: what fits, and whether reading or arithmetic
    binds a step. Without, what this engine measured on a processor does.
    """
    load = _load(model, batch, context, dtype)
    where = TargetMachine(**place)
    if where.card is None:
        _show_cpu(load, where, as_json)
    else:
        _show_card(where.card, load, where, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMachine:
    """Hardware that the model is to run on.

    Attributes:
        card: A name of :data:`~quire.planner.advice.named_cards.NAMED_CARDS`; None for this
            machine.
        tensor_parallel_size: Cards that share the model.
        memory: Bytes of each card, or of the machine; None for all.
        fraction: Part of the memory for weights and KV.
    """

    card: str | None
    tensor_parallel_size: int
    memory: int | None
    fraction: float

    def __post_init__(self) -> None:
        """Refuse several processors without a card.

        Raises:
            click.UsageError: Several processors are asked for without a card; it names the flag.
        """
        if self.card is None and self.tensor_parallel_size > 1:
            raise click.UsageError("--tensor-parallel-size is of cards; got it without --card.")


def _show_card(name: str, load: ServingLoad, place: TargetMachine, as_json: bool) -> None:
    card, count = NAMED_CARDS[name], place.tensor_parallel_size
    advice = advise(Cards.with_share(card, count, place.memory, place.fraction), load)
    if as_json:
        facts = {"card": name, "source": card.source, "cards": count}
        _write(facts, advice.choice, advice.reasons, map(_record, advice.options), load)
        return
    _show_choice(advice.choice, advice.reasons)
    _show_options(advice, load)
    click.echo(f"\n{card.title}: {card.source}; dense rates. x bf16: a bound, not measured.")
    _show_types(load.num_parameters)


def _load(model: str, batch: int, context: int, dtype: str) -> ServingLoad:
    """Return what shall run; of a number of parameters alone, KV is not known."""
    stated = stated_parameters(model)
    if stated is not None:
        return ServingLoad.of_model(stated, None, batch, context)
    spec = kv_spec(model, dtype)
    return ServingLoad.of_model(num_parameters(model), spec, batch, context)


def _show_cpu(load: ServingLoad, place: TargetMachine, as_json: bool) -> None:
    from quire.planner.machine_speed import remembered
    from quire.system.machine import read_machine

    total = place.memory or read_machine().total_bytes
    advice = advise_cpu(total * place.fraction, load, remembered())
    if as_json:
        rows = [
            {**asdict(row.measured), "weight_bytes": round(row.weight_bytes), "fits": row.fits}
            for row in advice.rows
        ]
        facts = {"card": None, "measured_batch": advice.batch}
        _write(facts, advice.choice, advice.reasons, rows, load)
        return
    _show_choice(advice.choice, advice.reasons)
    _show_measured(advice)
    _show_types(load.num_parameters)


def _write(
    facts: dict[str, Any], choice: str | None, reasons: list[str], rows: Any, load: ServingLoad
) -> None:
    click.echo(json.dumps({
        **facts,
        **asdict(load),
        "choice": choice,
        "reasons": reasons,
        "formats": list(rows),
        "types": [
            {**asdict(each), "bytes": each.bytes_of(load.num_parameters), "saving": each.saving}
            for each in NUMBER_TYPES
        ],
    }))  # fmt: skip


def _record(option: FormatChoice) -> dict[str, Any]:
    return {
        "format": option.form.name,
        "bits_per_weight": option.form.bits,
        "weight_bytes": round(option.weight_bytes),
        "fits": option.fits,
        "sequences": option.sequences,
        "critical_batch": option.critical_batch,
        "speedup": option.speedup,
    }


def _show_choice(choice: str | None, reasons: list[str]) -> None:
    click.echo(f"choice: {choice or 'none fits'}")
    for reason in reasons:
        click.echo(f"- {reason}")


def _show_options(advice: Advice, load: ServingLoad) -> None:
    click.echo()
    print_table([
        ("format", "bits", "weights, GB", "fits", "sequences", "critical batch",
         f"x bf16, batch {load.batch:,}"),
        *(
            (
                option.form.name,
                f"{option.form.bits:g}",
                f"{option.weight_bytes / 1e9:.1f}",
                "yes" if option.fits else "no",
                "" if option.sequences is None else f"{option.sequences:,}",
                f"{option.critical_batch:.1f}",
                f"{option.speedup:.2f}",
            )
            for option in advice.options
        ),
    ])  # fmt: skip


def _show_measured(advice: CpuAdvice) -> None:
    click.echo()
    print_table([
        ("--quantization", "bits", "weights, GB", "fits", f"x bf16, batch {advice.batch}",
         "perplexity"),
        *(
            (
                row.measured.name,
                f"{row.measured.bits:g}",
                f"{row.weight_bytes / 1e9:.1f}",
                "yes" if row.fits else "no",
                f"{row.measured.decode[advice.batch]:.2f}",
                f"x {row.measured.perplexity:.4f}",
            )
            for row in advice.rows
        ),
    ])  # fmt: skip


def _show_types(count: int) -> None:
    """Print what the types of numbers take, before scales."""
    click.echo(f"\n{count / 1e9:,.2f} billion weights by type of number, before scales")
    print_table([
        ("type", "bits", "range", "GB", "saved"),
        *(
            (
                each.name,
                str(each.bits),
                f"{each.least:.6g} to {each.largest:.6g}",
                f"{each.bytes_of(count) / 1e9:.1f}",
                f"{each.saving:.1%}",
            )
            for each in NUMBER_TYPES
        ),
    ])  # fmt: skip
