"""One mutant against the tests that reach it: nearest first, until one fails."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tools.mutants.scratch import FAILED, NO_TESTS, PASSED, Run, Scratch
from tools.mutants.table import Mutant
from tools.rooms import reached

#: Files that are tried at first, and how many times more each next time.
FIRST_FILES, TIMES_MORE = 1, 5
SMALL, WHOLE = 1, 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        circle: Whose tests killed it, 1 or 3; None when it lives.
        tried: The widest circle that was asked.
        killed_by: The test.
        how: ``failed``, ``out of time`` or ``crashed``.
        num_files: Of tests that were run, the recorded one apart.
        seconds: It took.
    """

    circle: int | None
    tried: int
    killed_by: str = ""
    how: str = ""
    num_files: int = 0
    seconds: float = 0.0

    def entry(self) -> dict[str, Any]:
        """Return it as the result file has it."""
        return {**asdict(self), "seconds": round(self.seconds, 1)}


class Trial:
    """Tries mutants in a copy of the tree.

    Args:
        scratch: The copy.
        nearest: Test files at most that a mutant meets; None for all that reach it.
    """

    def __init__(self, scratch: Scratch, nearest: int | None) -> None:
        self._scratch, self._nearest = scratch, nearest
        self._sound: set[str] = set()  # tests that pass without a fault
        self._broken: set[str] = set()

    def broken(self, tests: Iterable[str]) -> set[str]:
        """Return which of some tests fail without any fault; they are not asked again."""
        unknown = sorted({*tests} - self._sound - self._broken)
        if unknown:
            run = self._scratch.test(unknown)
            if run.code not in (PASSED, FAILED):
                raise RuntimeError(f"pytest ended with {run.code}\n{run.text}")
            self._broken |= run.failed
            self._sound |= {*unknown} - run.failed
        return self._broken & {*tests}

    def run(self, mutant: Mutant, circle: int) -> Verdict:
        """Return what becomes of a mutant under one circle's tests."""
        seconds, num_files = 0.0, 0
        flags = ["--all"] if circle == WHOLE else []
        aside = [f"--deselect={test}" for test in sorted(self._broken)]
        with self._scratch.fault(mutant):
            for tests in self._rounds(mutant):
                num_files += sum("::" not in test for test in tests)
                run = self._scratch.test([*tests, "-x", *flags, *aside])
                seconds += run.seconds
                if run.has_failed:
                    return Verdict(circle, circle, run.last, _how(run), num_files, seconds)
                # A recorded test may be one of another machine.
                if run.code not in (PASSED, NO_TESTS) and "::" not in tests[0]:
                    raise RuntimeError(f"{mutant.name}: pytest ended with {run.code}\n{run.text}")
        return Verdict(None, circle, num_files=num_files, seconds=seconds)

    def _rounds(self, mutant: Mutant) -> Iterator[list[str]]:
        """Yield the tests to run, those first that most likely fail."""
        if mutant.killed_by and mutant.killed_by not in self._broken:
            # With all its rows: those that a circle leaves out do not count.
            yield [mutant.killed_by.partition("[")[0]]
        files = [*dict.fromkeys([*mutant.rooms, *reached([mutant.file])])][: self._nearest]
        size = FIRST_FILES
        while files:
            yield files[:size]
            files, size = files[size:], size * TIMES_MORE


def can_try(mutant: Mutant) -> bool:
    """Return whether the tests that see a mutant can run here."""
    return not mutant.needs or importlib.util.find_spec(mutant.needs) is not None


def _how(run: Run) -> str:
    if run.code < 0:
        return "crashed"
    return "out of time" if "from pytest-timeout" in run.text else "failed"
