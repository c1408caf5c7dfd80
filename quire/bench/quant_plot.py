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
        _draw_quality(axes[0][0], judged, document["reference"])
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


def _draw_quality(axes: Axes, rows: list[Row], reference: str) -> None:
    figures = [row["quality"]["comparison"]["divergence"] for row in rows]
    least = min(figure["value"] for figure in figures if figure["value"] > 0) / 10
    placed = [
        (row["bits_per_weight"], max(figure["value"], least))
        for row, figure in zip(rows, figures, strict=True)
    ]
    for row, (bits, value) in zip(rows, placed, strict=True):
        figure = row["quality"]["comparison"]["divergence"]
        low, high = figure["low"], figure["high"]
        error = None
        if low is not None:
            error = [[value - max(low, least)], [max(high, value) - value]]
        axes.errorbar([bits], [value], error, fmt="o", color=COLORS[0], capsize=3)
        side, up = _place_label(bits, value, placed)
        axes.annotate(row["label"].removeprefix(f"{reference} "), (bits, value), fontsize=8,
            xytext=(6 * side, 5 * up), textcoords="offset points", va="center",
            ha="left" if side > 0 else "right")  # fmt: skip
    axes.set_yscale("log")
    axes.margins(x=0.15)
    axes.set(title="KL divergence, 95% interval", ylabel="nats a token")


def _place_label(bits: float, value: float, placed: list[tuple[float, float]]) -> tuple[int, int]:
    """Return where a label overlaps least: 1 to the right or -1 to the left, and 1 up or 0."""
    near = [
        (other, height)
        for other, height in placed
        if (other, height) != (bits, value)
        and 0.85 < other / bits < 1.2
        and 0.6 < height / value < 1.7
    ]
    beyond = {other > bits for other, _ in near if other != bits}
    same = [height for other, height in near if other == bits]
    return -1 if beyond == {True} else 1, int(bool(same) and value > max(same))


def _draw_speed(axes: Axes, rows: list[Row]) -> None:
    names = (
        {f"decode, batch {name}": ("decode", name) for name in rows[0]["decode"]} if rows else {}
    )
    for index, (color, (label, (part, name))) in enumerate(
        zip(COLORS, names.items(), strict=False)
    ):
        ratios = [row[part][name]["ratio"] for row in rows]
        medians = [ratio["median"] for ratio in ratios]
        spread = [
            [ratio["median"] - ratio["min"] for ratio in ratios],
            [ratio["max"] - ratio["median"] for ratio in ratios],
        ]
        shift = 1 + 0.02 * (index - len(names) // 2)  # so that no point hides another
        bits = [row["bits_per_weight"] * shift for row in rows]
        axes.errorbar(bits, medians, spread, fmt="o", color=color, capsize=3, label=label)
    axes.axhline(1.0, color=REFERENCE, linestyle="--")
    axes.set(title="median, least and largest round", ylabel="times the reference's tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", fontsize=8, frameon=False)
