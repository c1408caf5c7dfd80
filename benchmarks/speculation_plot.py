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

RESULT = results.RESULTS / "speculation_qwen3-0.6b.q4_0_zen5.json"
PICTURE = Path(__file__).parent.parent / "docs/images/speculation_zen5.png"
COLORS = ["#1f5fbf", "#2a9d5c", "#c77d11", "#b23a48"]
PLAIN = "#9a9a9a"
#: The load sweep is shown for proposals that hold this often.
RATE = "0.8"
SHOWN = ("K=2", "K=4", "K=8", "auto")


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
    figure, (rates, loads) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for color, (load, by_rate) in zip(COLORS, by_load.items(), strict=False):
        entries = {float(rate): rows["auto"]["speedup"] for rate, rows in by_rate.items()}
        name = "1 request" if load == "1" else f"{load} requests"
        _line(rates, entries, name, color)
    rates.set(title="the engine's choice, up to 8 tokens", xlabel="chance that a proposal holds")
    for color, name in zip(COLORS, SHOWN, strict=True):
        entries = {float(load): rows[RATE][name]["speedup"] for load, rows in by_load.items()}
        _line(loads, entries, "the engine's choice" if name == "auto" else name, color)
    loads.set(title=f"proposals that hold with chance {RATE}", xlabel="requests at a time")
    loads.set_xscale("log", base=2)
    loads.set_xticks([int(load) for load in by_load], list(by_load))
    for axes in (rates, loads):
        axes.axhline(1.0, color=PLAIN, linestyle="--")
        axes.set(ylabel="times as fast as without")
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
