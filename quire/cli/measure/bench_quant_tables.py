"""The result of ``quire bench quant`` as tables on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.core.plurals import counted

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
#: Columns of a table that goes into a file.
FILE_WIDTH = 160


def show(document: dict[str, Any]) -> None:
    """Print memory, speed and quality, a table each."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    rows = document["formats"]
    console.print(memory_table(rows))
    console.print(speed_table(rows, document))
    if document["quality_not_measured"] is None:
        console.print(quality_table(rows, document["reference"]))
    else:
        click.echo(f"quality was not measured: {document['quality_not_measured']}")


def memory_table(rows: list[Row]) -> Table:
    """Return what each model takes, and what multiplies it."""
    table = _table("memory; bits a weight of the layers", "model", "format")
    for name in ("bits", "formula", "weights, MB", "file, MB", "load, s"):
        table.add_column(name, justify="right")
    table.add_column("held as")
    table.add_column("kernel", overflow="fold")
    for row in rows:
        file_bytes = row["file_bytes"]
        table.add_row(
            row["label"],
            row["format"],
            _number(row["bits_per_weight"], 3),
            _number(row["formula_bits"], 3),
            f"{row['weight_bytes'] / 1e6:,.1f}",
            "none" if file_bytes is None else f"{file_bytes / 1e6:,.1f}",
            f"{row['load_seconds']:.2f}",
            row["held_as"] or "",
            (row["kernel"] or "").partition(" (")[0],
        )
    return table


def speed_table(rows: list[Row], document: dict[str, Any]) -> Table:
    """Return tokens a second, and how many times the reference's they are."""
    table = _table(
        f"tokens/s, and times those of {document['reference']}: median of "
        f"{counted(document['num_rounds'], 'round')} (least to largest)",
        "model",
    )
    table.add_column(f"prompt of {document['prompt_len']}", justify="right")
    for batch in rows[0]["decode"]:
        table.add_column(f"decode, batch {batch}", justify="right")
    for row in rows:
        table.add_row(
            row["label"], _speed(row["prefill"]), *(_speed(each) for each in row["decode"].values())
        )
    return table


def quality_table(rows: list[Row], reference: str) -> Table:
    """Return perplexity, and the comparison with the reference."""
    text = rows[0]["quality"]["text"]
    table = _table(
        f"quality on {counted(text['num_counted'], 'token')}, with 95% intervals; next to "
        f"{reference}",
        "model",
    )
    for name in ("perplexity", "ratio", "KL, nats", "same best token"):
        table.add_column(name, justify="right")
    for row in rows:
        found = row["quality"].get("comparison")
        cells = ["", "", ""]
        if found is not None:
            cells = [
                _estimate(found["ratio"], "{:.4f}"),
                _estimate(found["divergence"], "{:.3g}"),
                _estimate(found["agreement"], "{:.2%}"),
            ]
        table.add_row(
            row["label"], _estimate(row["quality"]["text"]["perplexity"], "{:.4f}"), *cells
        )
    return table


def _table(title: str, *names: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _speed(figures: Row) -> str:
    ratio = figures["ratio"]
    spread = f"{ratio['min']:.2f} to {ratio['max']:.2f}"
    return f"{figures['median']:,.0f}  {ratio['median']:.2f}x ({spread})"


def _estimate(figure: Row, form: str) -> str:
    value = form.format(figure["value"])
    if figure["low"] is None:
        return value
    return f"{value} ({form.format(figure['low'])} to {form.format(figure['high'])})"


def _number(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:.{digits}f}"
