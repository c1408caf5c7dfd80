"""Put small faults into a copy of the tree, one at a time, and see which test finds each."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tools.mutants import report
from tools.mutants.scratch import Scratch
from tools.mutants.table import Mutant, read_mutants, record
from tools.mutants.trial import SMALL, WHOLE, Trial, Verdict, can_try


def main() -> None:
    arguments = _parser().parse_args()
    mutants = read_mutants()
    unknown = set(arguments.only) - set(mutants)
    if unknown:
        sys.exit(f"scripts/mutants: no mutant is named {', '.join(sorted(unknown))}")
    if not arguments.summary:
        wanted = [m for name, m in mutants.items() if name in arguments.only or not arguments.only]
        _try(wanted, arguments)
    files = {name: mutant.file for name, mutant in mutants.items()}
    known = {name: one for name, one in report.read().items() if name in files}
    sys.exit(0 if report.show(known, files) else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    add = parser.add_argument
    add("--summary", action="store_true", help="print the last run's results, try nothing")
    add("--all", action="store_true", help="try the small circle's survivors with the whole suite")
    add("--record", action="store_true", help="write into the tables which test kills each")
    add("--only", metavar="NAME", nargs="+", default=[], help="of the mutants")
    add("--nearest", metavar="N", type=int, help="meet the N nearest test files alone")
    return parser


def _try(mutants: list[Mutant], arguments: argparse.Namespace) -> None:
    """Try mutants, those in Python first, and write down what became of them."""
    scratch = Scratch()
    scratch.refresh()
    trial = Trial(scratch, arguments.nearest, print)
    here = [mutant for mutant in mutants if can_try(mutant)]
    for mutant in mutants:
        if not can_try(mutant):
            print(f"{mutant.name}: not tried, its tests need {mutant.needs}")
    trial.check([mutant.killed_by for mutant in here])
    verdicts: dict[str, dict[str, Any]] = {}
    try:
        for mutant in sorted(here, key=lambda mutant: mutant.is_native):
            verdict = trial.run(mutant, SMALL)
            if verdict.circle is None and arguments.all:
                verdict = trial.run(mutant, WHOLE)
            verdicts[mutant.name] = verdict.entry()
            print(_line(mutant, verdict), flush=True)
    finally:
        if verdicts:
            report.write(verdicts, set(read_mutants()), nearest=arguments.nearest)
        if arguments.record:
            record({n: one["killed_by"] for n, one in verdicts.items() if one["circle"] == SMALL})


def _line(mutant: Mutant, verdict: Verdict) -> str:
    what = f"killed by {verdict.killed_by} ({verdict.how})" if verdict.circle else "LIVES"
    return f"{mutant.name}: {what}, {verdict.num_files} files, {verdict.seconds:.0f} s"


if __name__ == "__main__":
    main()
