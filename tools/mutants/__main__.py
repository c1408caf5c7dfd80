"""Put small faults into a copy of the tree, one at a time, and see which test finds each."""

from __future__ import annotations

import argparse
import sys

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
    trial = Trial(scratch, arguments.nearest)
    left = sorted(filter(can_try, mutants), key=lambda mutant: mutant.is_native)
    for mutant in mutants:
        if mutant not in left:
            print(f"{mutant.name}: not tried, its tests need {mutant.needs}")
    verdicts: dict[str, Verdict] = {}
    try:
        while left:
            for mutant in left:
                verdicts[mutant.name] = _verdict(trial, mutant, arguments.all)
            killers = {verdicts[mutant.name].killed_by for mutant in left} - {""}
            broken = trial.broken(killers)
            for test in sorted(broken):
                print(f"{test} fails without any fault: it is left out")
            left = [mutant for mutant in left if verdicts[mutant.name].killed_by in broken]
    finally:
        entries = {name: verdict.entry() for name, verdict in verdicts.items()}
        if entries:
            report.write(entries, set(read_mutants()), nearest=arguments.nearest)
        if arguments.record:
            record({n: one.killed_by for n, one in verdicts.items() if one.circle == SMALL})


def _verdict(trial: Trial, mutant: Mutant, tries_all: bool) -> Verdict:
    """Try one mutant, and say what became of it."""
    verdict = trial.run(mutant, SMALL)
    if verdict.circle is None and tries_all:
        verdict = trial.run(mutant, WHOLE)
    what = f"killed by {verdict.killed_by} ({verdict.how})" if verdict.circle else "LIVES"
    print(f"{mutant.name}: {what}, {verdict.num_files} files, {verdict.seconds:.0f} s", flush=True)
    return verdict


if __name__ == "__main__":
    main()
