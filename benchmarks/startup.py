"""Start times as a user sees them: ``quire --help``, and a fresh process to its first token.

Each repeat starts a new process; the page cache is warm, as on a second start.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import results

FIRST_TOKEN = (
    "from quire import LLM, SamplingParams; "
    "LLM().generate('Once', SamplingParams(temperature=0, max_tokens=1))"
)
QUIRE = [sys.executable, "-m", "quire"]
CASES = {
    "quire --help": ([*QUIRE, "--help"], 0.3),
    "quire-tiny to the first token": ([sys.executable, "-c", FIRST_TOKEN], 2.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()

    def start(command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True)

    timed = results.interleave(
        {name: lambda command=command: start(command) for name, (command, _) in CASES.items()},
        repeats=arguments.repeats,
    )
    table = Table("start", "median s", "min..max", "limit s")
    for name, (_, limit) in CASES.items():
        row = timed[name]
        table.add_row(
            name, f"{row['median']:.2f}", f"{row['min']:.2f}..{row['max']:.2f}", str(limit)
        )
    Console().print(table)
    rows = {name: {**timed[name], "limit_seconds": limit} for name, (_, limit) in CASES.items()}
    print(f"written: {results.write('startup', rows).name}")


if __name__ == "__main__":
    main()
