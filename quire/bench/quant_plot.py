"""Draws the result of ``quire bench quant``: quality and speed over bits a weight."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.bench.plot_file import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#1f5fbf", "#c2571a", "#2f8f4e", "#8a4fbf")
#: Of a label, in points, and as a factor of bits.
LABEL_HEIGHT, LABEL_WIDTH = 9.0, 1.2
#: Of what points are spread over, in points.
PANEL_HEIGHT = 230.0
REFERENCE = "#9a9a9a"
Row = dict[str, Any]


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the picture of a result: two panels, or one where quality was not measured.

    Raises:
        ConfigError: The picture cannot be written.
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
    decades = math.log10(max(value for _, value in placed) / min(value for _, value in placed))
    scale = PANEL_HEIGHT / max(decades, 1)
    spots = place_labels([(bits, scale * math.log10(value)) for bits, value in placed])
    for row, (bits, value), (side, down) in zip(rows, placed, spots, strict=True):
        figure = row["quality"]["comparison"]["divergence"]
        low, high = figure["low"], figure["high"]
        error = None
        if low is not None:
            error = [[value - max(low, least)], [max(high, value) - value]]
        axes.errorbar([bits], [value], error, fmt="o", color=COLORS[0], capsize=3)
        axes.annotate(row["label"].removeprefix(f"{reference} "), (bits, value), fontsize=8,
            xytext=(6 * side, down), textcoords="offset points", va="center",
            ha="left" if side > 0 else "right")  # fmt: skip
    axes.set_yscale("log")
    axes.margins(x=0.15)
    axes.set(title="KL divergence, 95% interval", ylabel="nats a token")


def place_labels(placed: list[tuple[float, float]]) -> list[tuple[int, float]]:
    """Return a side of each point, 1 for right and -1 for left, and how far down a label goes.

    From the highest point down, a label moves below those on its side that it would touch.

    Args:
        placed: Bits and height of each point, heights in points of the page.
    """
    spots: list[tuple[int, float]] = [(1, 0.0)] * len(placed)
    done: list[tuple[int, float, float]] = []
    for index in sorted(range(len(placed)), key=lambda each: -placed[each][1]):
        bits, height = placed[index]
        near = [other for other, high in placed if abs(high - height) < LABEL_HEIGHT]
        right = any(bits < other < LABEL_WIDTH * bits for other in near)
        left = any(bits / LABEL_WIDTH < other < bits for other in near)
        side, label = -1 if right and not left else 1, height
        for other, at, level in done:
            if other == side and 1 / LABEL_WIDTH < at / bits < LABEL_WIDTH:
                label = min(label, level - LABEL_HEIGHT)
        done.append((side, bits, label))
        spots[index] = (side, label - height)
    return spots


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
