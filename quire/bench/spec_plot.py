"""Draws the result of ``quire bench spec``: tokens a second and their ratio, by clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.bench.plot_file import save

WITH, WITHOUT = "#1f5fbf", "#9a9a9a"


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the picture of a result.

    Raises:
        ConfigError: The picture cannot be written.
    """
    from matplotlib import pyplot

    loads = document["loads"]
    figure, (rates, ratios) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    clients = [load["max_concurrency"] for load in loads]
    for way, color in (("without", WITHOUT), ("with", WITH)):
        values = [load[way]["output_throughput"] for load in loads]
        rates.plot(clients, values, "o-", color=color, label=f"{way} speculation")
    rates.set(title="by load", xlabel="clients", ylabel="output tokens per second")
    rates.set_ylim(bottom=0)
    rates.legend(loc="best", fontsize=8, frameon=False)
    shown = [(load["max_concurrency"], load["ratio"]) for load in loads if load["ratio"]["rounds"]]
    medians = [ratio["median"] for _, ratio in shown]
    spread = [
        [ratio["median"] - ratio["min"] for _, ratio in shown],
        [ratio["max"] - ratio["median"] for _, ratio in shown],
    ]
    ratios.errorbar([count for count, _ in shown], medians, spread, fmt="o-", color=WITH, capsize=4)
    ratios.axhline(1.0, color=WITHOUT, linestyle="--")
    ratios.set(title="median, least and largest round", xlabel="clients", ylabel="with / without")
    ratios.set_ylim(bottom=0)
    for axes in (rates, ratios):
        axes.set_xscale("log", base=2)
        axes.set_xticks(clients, [str(count) for count in clients])
        axes.grid(alpha=0.3)
    figure.suptitle(f"{document['model_id']}: {document['dataset']}, up to "
                    f"{document['output_len']} tokens")  # fmt: skip
    save(figure, path)
