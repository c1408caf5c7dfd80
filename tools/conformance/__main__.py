"""``scripts/conformance --base-url URL``: play every transcript, exit with 1 if any is wrong."""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console
from rich.table import Table

from tools.conformance.runner import Runner
from tools.conformance.transcript import load

COLOURS = {"ok": "green", "refused": "yellow", "wrong": "red"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"))
    parser.add_argument("--area", action="append", help="only these (repeatable)")
    arguments = parser.parse_args()
    wanted = [t for t in load() if not arguments.area or t.area in arguments.area]
    table = Table("area", "transcript", "outcome", "reason")
    counts = dict.fromkeys(COLOURS, 0)
    with Runner(arguments.base_url, arguments.api_key) as runner:
        verdicts = list(runner.run(wanted))
    for verdict in verdicts:
        counts[verdict.outcome] += 1
        colour = COLOURS[verdict.outcome]
        table.add_row(
            verdict.transcript.area,
            verdict.transcript.name,
            f"[{colour}]{verdict.outcome}[/]",
            verdict.reason[:160].replace("[", "\\["),
        )
    console = Console()
    console.print(table)
    console.print(", ".join(f"{count} {name}" for name, count in counts.items()))
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
