"""Prints the comparison's result file: a table per weight type, a line per case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: Unit -> (shown as, divisor).
UNITS = {"tokens/s": ("tok/s", 1.0), "s": ("s", 1.0), "bytes": ("MB", 1e6), "ms": ("ms", 1.0)}
ORDER = (
    "decode, batch", "decode at", "decode with", "prefill", "rss", "load", "ready", "burst"
)  # fmt: skip


def _place(name: str) -> tuple[int, int, str]:
    first = next((i for i, prefix in enumerate(ORDER) if name.startswith(prefix)), len(ORDER))
    digits = "".join(c for c in name if c.isdigit())
    return first, int(digits or 0), name


def _figure(entry: dict[str, Any], engine: str) -> str:
    shown, divisor = UNITS[entry["unit"]]
    value = entry[engine]["median"] / divisor
    figure = f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f} {shown}"
    # Starts differ more than steps do: their quartiles lie this far apart.
    return f"{figure} ({entry[engine]['spread']:.0%})" if entry["unit"] == "s" else figure


def _fractions(entry: dict[str, Any], engine: str) -> str:
    if "of_read" not in entry[engine]:
        return ""
    return f"{entry[engine]['of_read']:.0%} / {entry[engine]['of_compute']:.0%}"


def print_tables(path: Path, types: list[str]) -> None:
    """Print the tables of ``types`` that ``path`` has."""
    document = json.loads(path.read_text())
    console = Console(width=130)
    for type_name in types:
        entries = document["results"].get(type_name)
        if not entries:
            continue
        table = Table(title=f"{document['shape']} {type_name}", title_justify="left")
        heads = ("case", "Quire", "read / compute", "llama.cpp", "read / compute", "ratio", "range")
        for head in (*heads, "commit"):
            table.add_column(head, justify="left" if head in ("case", "commit") else "right")
        for name in sorted(entries, key=_place):
            entry = entries[name]
            ratio = entry["ratio"]
            mark = "*" if entry.get("rounds_not_quiet") else ""
            table.add_row(
                name.replace("_", " "),
                _figure(entry, "quire"),
                _fractions(entry, "quire"),
                _figure(entry, "llama.cpp"),
                _fractions(entry, "llama.cpp"),
                f"{ratio['median']:.2f}x{mark}",
                f"{ratio['min']:.2f}..{ratio['max']:.2f}",
                document["runs"][entry["run"]]["commit"],
            )
        console.print(table)
    console.print(
        "read / compute: fraction of this machine's measured bandwidth and arithmetic rate"
    )
    console.print("*: not every round was quiet; (%): spread, between the quartiles by the median")
