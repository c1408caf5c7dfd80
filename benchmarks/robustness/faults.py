"""``scripts/faults``: run the fault matrix of docs/robustness.md and write what each cell showed.

``--page cluster`` is that of docs/cluster.md, of which a part needs Ray: see ``scripts/test_ray``.
What a test records of each time that a fault struck, such as the seconds until all served again, is
summed up in its cell.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results

ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"\| (.+?) \| (.+) \| ((?:`test_\w+`(?:, )?)+) \|")


def rows(page: str = "robustness") -> list[tuple[str, str, list[str]]]:
    """Return each fault of a page with its outcome and the names of its tests."""
    found = []
    for line in (ROOT / "docs" / f"{page}.md").read_text().splitlines():
        match = _ROW.fullmatch(line)
        if match:
            found.append((match[1], match[2], re.findall(r"`(test_\w+)`", match[3])))
    return found


def figures(cases: list[ElementTree.Element]) -> dict[str, Any]:
    """Return what tests have measured of a fault, each time that it struck, by name."""
    found: dict[str, list[float]] = {}
    for case in cases:
        for one in case.iter("property"):
            name = one.get("name", "")
            if name.endswith("_seconds"):  # what tests took themselves is noted by other names
                found.setdefault(name, []).append(float(one.get("value", "nan")))
    return {name: results.summary(numbers) for name, numbers in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50, help="how often repeated faults strike")
    parser.add_argument("--page", default="robustness", help="of docs: robustness or cluster")
    parser.add_argument("--only", default="", help="faults with this word")
    arguments = parser.parse_args()
    times = arguments.times
    table_rows = [row for row in rows(arguments.page) if arguments.only in row[0]]
    names = [name for _, _, tests in table_rows for name in tests]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        selection = ["-k", " or ".join(names), f"--junitxml={report}", "-q"]
        selection += ["--timeout=0", f"--fault-times={times}"]
        code = subprocess.run([sys.executable, "-m", "pytest", *selection], cwd=ROOT).returncode
        cases = list(ElementTree.parse(report).iter("testcase"))
    table = Table("fault", "shown by", "result")
    cells = []
    for fault, outcome, tests in table_rows:
        mine = [case for case in cases if case.get("name", "").partition("[")[0] in tests]
        bad = [case for case in mine if any(child.tag != "properties" for child in case)]
        result = "as stated" if mine and not bad else "NOT as stated" if bad else "not run"
        cell = {"fault": fault, "outcome": outcome, "tests": len(mine), "result": result}
        cells.append(cell | figures(mine))
        table.add_row(fault, ", ".join(tests), result)
    Console().print(table)
    name = "faults" if arguments.page == "robustness" else f"faults_{arguments.page}"
    name += f"_{arguments.only.lower()}" if arguments.only else ""
    bad_cells = sum(cell["result"] != "as stated" for cell in cells)
    written = results.write(name, cells, times=times, not_as_stated=bad_cells)
    print(f"written: {written.name}")
    sys.exit(code)


if __name__ == "__main__":
    main()
