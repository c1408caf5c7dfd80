"""Draws the result of ``quire bench quant``: quality and speed over bits a weight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.bench.plot_file import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#1f5fbf", "#c2571a", "#2f8f4e", "#8a4fbf")
REFERENCE = "#9a9a9a"
Row = dict[str, Any]


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the picture of a result: two panels, or one where quality was not measured.

    Raises:
        ConfigError: It cannot be written.
    """
    from matplotlib import pyplot

    rows = [row for row in document["formats"] if row["bits_per_weight"] is not None]
    judged = [row for row in rows if row["quality"] and "comparison" in row["quality"]]
    figure, axes = pyplot.subplots(
        1, 2 if judged else 1, figsize=(11 if judged else 6, 4.5), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    if judged:
        _draw_quality(axes[0][0], judged)
    _draw_speed(axes[0][-1], rows)
    for each in axes[0]:
        each.set_xscale("log", base=2)
        ticks = [bits for bits in (2, 3, 4, 5, 6, 8, 16, 32) if _is_near(bits, rows)]
        each.set_xticks(ticks, [str(bits) for bits in ticks], minor=False)
        each.minorticks_off()
        each.set_xlabel("bits a weight of the layers, in memory")
        each.grid(alpha=0.3)
    figure.suptitle(f"next to {document['reference']}")
    save(figure, path)


def _is_near(bits: int, rows: list[Row]) -> bool:
    held = [row["bits_per_weight"] for row in rows]
    return bool(held) and 0.8 * min(held) <= bits <= 1.25 * max(held)


def _draw_quality(axes: Axes, rows: list[Row]) -> None:
    figures = [row["quality"]["comparison"]["divergence"] for row in rows]
    least = min(figure["value"] for figure in figures if figure["value"] > 0) / 10
    for row, figure in zip(rows, figures, strict=True):
        value = max(figure["value"], least)
        low, high = figure["low"], figure["high"]
        error = None
        if low is not None:
            error = [[value - max(low, least)], [max(high, value) - value]]
        bits = row["bits_per_weight"]
        axes.errorbar([bits], [value], error, fmt="o", color=COLORS[0], capsize=3)
        axes.annotate(row["label"], (bits, value), fontsize=7, xytext=(5, 4),
            textcoords="offset points")  # fmt: skip
    axes.set_yscale("log")
    axes.set(title="KL divergence, 95% interval", ylabel="nats a token")


def _draw_speed(axes: Axes, rows: list[Row]) -> None:
    names = (
        {f"decode, batch {name}": ("decode", name) for name in rows[0]["decode"]} if rows else {}
    )
    for color, (label, (part, name)) in zip(COLORS, names.items(), strict=False):
        ratios = [row[part][name]["ratio"] for row in rows]
        medians = [ratio["median"] for ratio in ratios]
        spread = [
            [ratio["median"] - ratio["min"] for ratio in ratios],
            [ratio["max"] - ratio["median"] for ratio in ratios],
        ]
        bits = [row["bits_per_weight"] for row in rows]
        axes.errorbar(bits, medians, spread, fmt="o", color=color, capsize=3, label=label)
    axes.axhline(1.0, color=REFERENCE, linestyle="--")
    axes.set(title="median, least and largest round", ylabel="times the reference's tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", fontsize=8, frameon=False)
