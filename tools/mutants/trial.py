"""One mutant against the tests that reach it: nearest first, until one fails."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
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
        say: Called with a line for people.
    """

    def __init__(self, scratch: Scratch, nearest: int | None, say: Callable[[str], None]) -> None:
        self._scratch, self._nearest, self._say = scratch, nearest, say
        self._sound: set[str] = set()  # tests that pass without a fault
        self._broken: set[str] = set()

    def check(self, killers: list[str]) -> None:
        """Learn in one run which of the recorded tests pass without any fault."""
        wanted = [test for test in killers if "::" in test]
        if wanted:
            run = self._scratch.test([*wanted, "--continue-on-collection-errors"])
            self._broken |= run.failed
            if run.code in (PASSED, FAILED):
                self._sound |= set(wanted) - run.failed

    def run(self, mutant: Mutant, circle: int) -> Verdict:
        """Return what becomes of a mutant under one circle's tests."""
        seconds, num_files = 0.0, 0
        flags = ["--all"] if circle == WHOLE else []
        with self._scratch.fault(mutant):
            for tests in self._rounds(mutant):
                num_files += sum("::" not in test for test in tests)
                found, spent = self._first_sound(tests, flags, mutant)
                seconds += spent
                if found is not None:
                    return Verdict(circle, circle, found.last, _how(found), num_files, seconds)
        return Verdict(None, circle, num_files=num_files, seconds=seconds)

    def _first_sound(
        self, tests: list[str], flags: list[str], mutant: Mutant
    ) -> tuple[Run | None, float]:
        """Return the run that failed on the fault alone, and the seconds of all runs."""
        seconds = 0.0
        while True:
            aside = [f"--deselect={test}" for test in sorted(self._broken)]
            run = self._scratch.test([*tests, "-x", *flags, *aside])
            seconds += run.seconds
            if not run.has_failed:
                if run.code not in (PASSED, NO_TESTS) and not (
                    len(tests) == 1 and "::" in tests[0]
                ):
                    raise RuntimeError(f"{mutant.name}: pytest ended with {run.code}\n{run.text}")
                return None, seconds
            if self._passes_without(run.last, mutant):
                return run, seconds

    def _passes_without(self, test: str, mutant: Mutant) -> bool:
        """Return whether a test passes when there is no fault; else it is not asked again."""
        if test not in self._sound | self._broken:
            with self._scratch.without(mutant):
                passes = self._scratch.test([test]).code == PASSED
            (self._sound if passes else self._broken).add(test)
            if not passes:
                self._say(f"  {test} fails without any fault: it is left out")
        return test in self._sound

    def _rounds(self, mutant: Mutant) -> Iterator[list[str]]:
        """Yield the tests to run, those first that most likely fail."""
        if mutant.killed_by and mutant.killed_by not in self._broken:
            yield [mutant.killed_by]
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
    return (
        "out of time" if "Timeout" in run.text and "from pytest-timeout" in run.text else "failed"
    )
