"""The report of ``quire eval`` as tables on stdout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from quire.cli.table import print_table
from quire.core.plurals import counted

Figure = dict[str, Any]
HEAD = ("", "value", "95% interval")


def print_report(report: dict[str, Any]) -> None:
    """Print what was judged, and a table for each kind of figure."""
    click.echo(_title(report))
    if "text" in report:
        _print_text(report)
    if "positions" in report:
        _print_positions(report["positions"])
    if "choices" in report:
        _print_choices(report["choices"])


def _title(report: dict[str, Any]) -> str:
    if "server" in report:
        return f"{report['model']} at {report['server']}"
    rounded = f" in {report['quantization']}" if report["quantization"] else ""
    title = f"{report['model']}{rounded}: {report['weight_bytes'] / 1e6:,.1f} MB of weights"
    if report["reference"] is not None:
        size = report["reference_weight_bytes"] / 1e6
        title += f"; reference {report['reference']}: {size:,.1f} MB"
    return title


def _print_text(report: dict[str, Any]) -> None:
    text = report["text"]
    overlap = f", {text['stride']} new in each" if text["stride"] < text["window"] else ""
    windows = counted(text["num_windows"], "window")
    click.echo(
        f"\n{Path(text['file']).name}: {text['num_counted']:,} of "
        f"{counted(text['num_tokens'], 'token')} "
        f"counted; {windows} of up to {text['window']:,}{overlap}"
    )
    rows: list[tuple[str, ...]] = [HEAD, _row("perplexity", text["perplexity"], _decimals)]
    found = report.get("comparison")
    if found is not None:
        rows += [
            _row("of the reference", found["reference_perplexity"], _decimals),
            _row("ratio", found["ratio"], _decimals),
            _row("KL divergence, nats", found["divergence"], _significant),
            ("1 token in 100 has more than", _significant(found["divergence_p99"]), ""),
            _row("same best token", found["agreement"], _percent),
        ]
    print_table(rows)


def _print_positions(buckets: list[dict[str, Any]]) -> None:
    click.echo("\nloss by the number of tokens before, nats")
    rows: list[tuple[str, ...]] = [
        ("tokens before", "tokens", "loss", "95% interval", "perplexity")
    ]
    for bucket in buckets:
        _, value, interval = _row("", bucket["loss"], _decimals)
        place = f"{bucket['begin']:,} to {bucket['end'] - 1:,}"
        perplexity = _decimals(bucket["perplexity"]["value"])
        rows.append((place, f"{bucket['num_tokens']:,}", value, interval, perplexity))
    print_table(rows)


def _print_choices(found: dict[str, Any]) -> None:
    asked = f"{found['num_asked']:,} of {counted(found['num_questions'], 'question')} asked"
    click.echo(f"\n{Path(found['file']).name}: {asked}; {found['num_answers']:,} have an answer")
    if not found["num_answers"]:
        click.echo("no answers to compare with: --json has what was picked")
        return
    rows: list[tuple[str, ...]] = [HEAD]
    for name, label in (("accuracy", "sum"), ("accuracy_normalized", "by byte")):
        rows.append(_row(f"accuracy, {label}", found[name], _percent))
        if f"reference_{name}" in found:
            rows.append(_row("of the reference", found[f"reference_{name}"], _percent))
            rows.append(_row("difference", found[f"{name}_difference"], _points))
    print_table(rows)


def _row(label: str, figure: Figure, write: Callable[[float], str]) -> tuple[str, str, str]:
    value, low, high = figure["value"], figure["low"], figure["high"]
    interval = "none: one window" if low is None else f"{write(low)} to {write(high)}"
    return label, write(value), interval


def _decimals(value: float) -> str:
    return f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.3e}"


def _significant(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}%"


def _points(value: float) -> str:
    return f"{100 * value:+.2f}%"
