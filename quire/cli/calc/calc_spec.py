"""``quire calc spec``: what speculation brings, by the formulas of its controller."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import click

from quire.cli.calc.calc_flags import COUNT, JSON, finite
from quire.cli.table import print_table
from quire.core.speculative_config import MAX_TOKENS
from quire.planner.speculation_estimate import (
    SpeedupTable,
    StepCosts,
    implied_costs,
    round_tokens,
)

TOKENS = click.IntRange(1, MAX_TOKENS)


@click.command("spec", short_help="Show what speculation brings.")
@click.option("--acceptance", "-a", "acceptances", type=click.FloatRange(0, 1), multiple=True,
    default=(0.5, 0.6, 0.7, 0.8, 0.9, 0.95), callback=finite,
    help="Chance that a proposed token holds; repeatable.")  # fmt: skip
@click.option("--tokens", "-k", type=TOKENS, multiple=True, default=(1, 2, 3, 4, 5, 8),
    help="Tokens proposed in a round; repeatable.")  # fmt: skip
@click.option("--draft-cost", "-c", "draft_costs", type=click.FloatRange(0), multiple=True,
    default=(0.0, 0.05, 0.1), callback=finite,
    help="Cost of proposing a token, relative to a step; repeatable.")  # fmt: skip
@click.option("--max-tokens", type=TOKENS, default=16, show_default=True,
    help="Most tokens proposed when the best number is looked for.")  # fmt: skip
@click.option("--batch", type=COUNT, help="Sequences of a step.")
@click.option("--row-cost", type=click.FloatRange(0), default=0.0, callback=finite,
    help="Cost of each further row, relative to a step of one row.")  # fmt: skip
@click.option("--ridge", type=click.FloatRange(1), callback=finite,
    help="Rows from which on arithmetic bounds a step (quire doctor).")  # fmt: skip
@click.option("--claimed", type=click.FloatRange(0, min_open=True), callback=finite,
    help="A speedup: show the draft cost that it implies.")  # fmt: skip
@JSON
def spec(
    acceptances: tuple[float, ...],
    tokens: tuple[int, ...],
    draft_costs: tuple[float, ...],
    claimed: float | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Show tokens per round and speedup of speculation, by the chance that a proposed token holds.

    K tokens are proposed and checked in one step: (1 - a^(K+1)) / (1 - a) tokens a round on
    average, in the time of K c + 1 steps. With --row-cost or --ridge, rows to check cost
    something, too, and the last column says up to which batch any K pays.
    """
    tokens = tuple(dict.fromkeys(tokens))  # a column each
    if claimed is not None:
        _show_claimed(claimed, acceptances, tokens, as_json)
        return
    tables = _tables(acceptances, tokens, draft_costs, **settings)
    rounds = round_tokens(acceptances, tokens)
    if as_json:
        click.echo(json.dumps({
            "rounds": rounds,
            "speedups": [record for table in tables for record in table.records()],
            "break_even": [
                {"draft_cost": table.costs.draft, "acceptance": table.break_even()}
                for table in tables
            ],
        }))  # fmt: skip
        return
    click.echo("tokens of a round with K proposed ones")
    print_table([
        ("acceptance", *(f"K={k}" for k in tokens)),
        *(
            (f"{one['acceptance']:g}", *map(_hundredths, one["tokens"].values()))
            for one in rounds
        ),
    ])  # fmt: skip
    for table in tables:
        _show(table)


def _tables(
    acceptances: tuple[float, ...],
    tokens: tuple[int, ...],
    draft_costs: tuple[float, ...],
    *,
    max_tokens: int,
    batch: int | None,
    row_cost: float,
    ridge: float | None,
) -> list[SpeedupTable]:
    if batch is not None and not row_cost and ridge is None:
        raise click.UsageError(
            f"--batch must come with --row-cost or --ridge; got {batch} alone: rows cost nothing."
        )
    costs = [StepCosts(draft=c, row=row_cost, ridge=ridge, batch=batch or 1) for c in draft_costs]
    return [SpeedupTable(each, acceptances, tokens, max_tokens) for each in costs]


def _hundredths(value: float) -> str:
    """Return a number rounded as people do: 1.575 to 1.58, though no float is that."""
    return str(Decimal(f"{value:.9f}").quantize(Decimal("0.01"), ROUND_HALF_UP))


def _show_claimed(
    claimed: float, acceptances: tuple[float, ...], tokens: tuple[int, ...], as_json: bool
) -> None:
    """Print the cost of a proposed token that a claimed speedup implies."""
    implied = implied_costs(claimed, acceptances, tokens)
    if as_json:
        click.echo(json.dumps(implied))
        return
    click.echo(f"a speedup of {claimed:g} implies that a proposed token costs, of a step")
    cells = [
        f"{record['draft_cost']:.3f}" if record["draft_cost"] >= 0 else "cannot be"
        for record in implied
    ]
    print_table([
        ("acceptance", *(f"K={k}" for k in tokens)),
        *(
            (f"{a:g}", *cells[i * len(tokens) : (i + 1) * len(tokens)])
            for i, a in enumerate(acceptances)
        ),
    ])  # fmt: skip


def _show(table: SpeedupTable) -> None:
    """Print the speedups at one cost of a proposed token."""
    costs = table.costs
    several = "" if costs.batch == 1 else f", {costs.batch:,} sequences"
    click.echo(f"\nspeedup where a proposed token costs {costs.draft:g} of a step{several}")
    head = ["acceptance", *(f"K={k}" for k in table.tokens), "best"]
    lines = [(*head, "pays up to") if table.ends else tuple(head)]
    for record in table.records():
        best = record["best_tokens"]
        line = [f"{record['acceptance']:g}"]
        line += map(_hundredths, record["speedup"].values())
        line.append(f"K={best}: {_hundredths(record['best_speedup'])}" if best else "none")
        if table.ends:
            last = record["last_batch"]
            line.append("any batch" if last is None else f"batch {last:,}" if last else "none")
        lines.append(tuple(line))
    least = table.break_even().values()
    even = ["never" if value is None else f"{value:.3f}" for value in least]
    lines.append(("break-even", *even, *[""] * (len(lines[0]) - len(even) - 1)))
    print_table(lines)
