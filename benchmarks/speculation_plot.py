"""Draws ``scripts/bench speculation``: what proposals bring, by how often they hold and by load.

python -m benchmarks.speculation_plot [RESULT.json] [PICTURE.png]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks import results

RESULT = results.RESULTS / "speculation_llama-3.2-1b.q4_0_zen5.json"
PICTURE = Path(__file__).parent.parent / "docs/images/speculation_zen5.png"
COLORS = ["#1f5fbf", "#2a9d5c", "#c77d11", "#b23a48"]
PLAIN = "#9a9a9a"
SHOWN = {
    "K=4": "chain of 4",
    "auto": "chain, the engine's choice up to 8",
    "T=16": "tree of 16",
    "T auto": "tree, the engine's choice up to 16",
}


def _line(axes: Any, entries: dict[float, dict[str, float]], label: str, color: str) -> None:
    """Draw medians with the range of their rounds."""
    x = sorted(entries)
    middle = [entries[key]["median"] for key in x]
    low, high = ([entries[key][name] for key in x] for name in ("min", "max"))
    axes.plot(x, middle, "o-", color=color, label=label, markersize=4)
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the picture of a result."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_load = document["results"]
    size = {"figsize": (5 * len(by_load), 4), "layout": "constrained"}
    figure, parts = pyplot.subplots(1, len(by_load), squeeze=False, **size)
    for axes, (load, by_rate) in zip(parts[0], by_load.items(), strict=True):
        for color, (name, label) in zip(COLORS, SHOWN.items(), strict=True):
            entries = {float(rate): rows[name]["speedup"] for rate, rows in by_rate.items()}
            _line(axes, entries, label, color)
        axes.set(title="1 request" if load == "1" else f"{load} requests at a time")
        axes.axhline(1.0, color=PLAIN, linestyle="--")
        axes.set(xlabel="chance that a proposal holds", ylabel="times as fast as without")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize=8, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main() -> None:
    paths = [Path(word) for word in sys.argv[1:]]
    source, target = (paths + [RESULT, PICTURE][len(paths) :])[:2]
    draw(json.loads(source.read_text(encoding="utf-8")), target)
    print(target)


if __name__ == "__main__":
    main()
