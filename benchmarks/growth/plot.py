"""Draws the growth result file: a panel for each axis, doubled from tick to tick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MEASURED, LIMIT, SECOND = "#1f5fbf", "#9a9a9a", "#c8501e"
HEADS = {
    "batch": ("decode by batch", "sequences a step", "tokens per second"),
    "context": ("one stream by context", "tokens before it", "milliseconds a token"),
    "prompt": ("prompts by length", "tokens", "tokens per second"),
    "streams": ("streams over HTTP, all at once", "streams", "output tokens per second"),
}


def _panel(axes: Any, axis: str, rows: list[dict[str, Any]]) -> None:
    title, x_label, y_label = HEADS[axis]
    values = [row[axis] for row in rows]
    reached = [row["tokens_per_second"] for row in rows]
    least = [row.get("limit_tokens_per_second", 0.0) for row in rows]
    if axis == "context":
        reached, least = ([1000 / rate for rate in rates] for rates in (reached, least))
    axes.plot(values, reached, "o-", color=MEASURED, label="measured")
    if all(least):
        axes.plot(values, least, "--", color=LIMIT, label="this machine's limit")
    # Linear where a straight line is the claim; else doubling.
    if axis != "context":
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:,}" for value in values])
    if axis == "batch":
        axes.set_yscale("log", base=2)
    else:
        axes.set_ylim(bottom=0)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8, frameon=False)


def _waiting(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Add the time to the first token of the slowest and the median stream."""
    right = axes.twinx()
    values = [row["streams"] for row in rows]
    for name, style in (("p50", ":"), ("p99", "--")):
        seconds = [row[f"ttft_{name}_ms"] / 1000 for row in rows]
        right.plot(values, seconds, style, color=SECOND, label=f"first token, {name}")
    right.set_ylabel("seconds", color=SECOND)
    right.set_ylim(bottom=0)
    right.legend(loc="center left", fontsize=8, frameon=False)


def draw(document: dict[str, Any], path: Path) -> Path:
    """Write the picture of a result file and return its path.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("[growth] pictures need matplotlib: pip install --group plots") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    for axes, axis in zip(panels.flat, HEADS, strict=True):
        _panel(axes, axis, document["results"][axis])
    _waiting(panels.flat[-1], document["results"]["streams"])
    machine = document["machine"]
    figure.suptitle(
        f"{document['model']}: {machine['cores']} cores of {machine['cpu']} ({machine['kind']})"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return path
