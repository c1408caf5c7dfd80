"""The table of the last run: which test killed which mutant, and how many circle 1 missed."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results

NAME = "mutants"
#: Of those that the whole suite kills, the part that the small circle must.
LEAST = 0.95


def write(verdicts: dict[str, dict[str, Any]], known: set[str], **run: Any) -> None:
    """Put verdicts into the result file, and take those of mutants that are gone out of it."""
    path = results.merge(NAME, {"mutants": verdicts}, run=run)
    document = json.loads(path.read_text())
    kept = {name: one for name, one in document["results"]["mutants"].items() if name in known}
    document["results"]["mutants"] = dict(sorted(kept.items()))
    document["summary"] = summary(kept)
    results.save(path, document)


def read() -> dict[str, dict[str, Any]]:
    """Return the verdicts of the result file by mutant; none without a file."""
    path = results.RESULTS / f"{NAME}.json"
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        found = json.loads(path.read_text())["results"]["mutants"]
    return found


def summary(verdicts: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return how many were killed by which circle, and the ratio.

    A survivor of the small circle that the whole suite has not met counts as if that killed it.
    """
    small = sum(one["circle"] == 1 for one in verdicts.values())
    lives = sum(one["circle"] is None and one["tried"] == 3 for one in verdicts.values())
    whole = len(verdicts) - lives
    return {
        "mutants": len(verdicts),
        "killed_by_circle_1": small,
        "killed_by_circle_3": whole,
        "ratio": round(small / whole, 4) if whole else 0.0,
    }


def show(verdicts: dict[str, dict[str, Any]], files: dict[str, str]) -> bool:
    """Print the table; return whether circle 1 kills enough."""
    table = Table("mutant", "file", "killed by", "circle", "how", "seconds")
    for name, one in sorted(verdicts.items(), key=lambda item: (item[1]["circle"] or 9, item[0])):
        circle = str(one["circle"] or ("none" if one["tried"] == 3 else "not 1"))
        killer = one["killed_by"] or "-"
        table.add_row(name, files[name], killer, circle, one["how"], f"{one['seconds']:.0f}")
    console = Console(soft_wrap=False)
    console.print(table)
    counts = summary(verdicts)
    missing = sorted(set(files) - set(verdicts))
    if missing:
        console.print(f"not tried: {', '.join(missing)}")
    console.print(
        f"{counts['mutants']} mutants: circle 1 kills {counts['killed_by_circle_1']}, circle 3 "
        f"{counts['killed_by_circle_3']}; ratio {counts['ratio']:.3f}, at least {LEAST}"
    )
    return counts["ratio"] >= LEAST
