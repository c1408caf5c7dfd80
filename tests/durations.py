"""What each room of tests costs: measured by every run, kept, and held to a budget.

A pytest plugin. CPU seconds are those of a test's own process and of the processes that it has
waited for, so a server counts where it ends. Servers that all tests of a worker share end with it:
they count, with collection and imports, as the room ``workers``.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Generator, Set
from pathlib import Path

import pytest

from tests import pace

ROOT = Path(__file__).parents[1]
#: What files took in the last run here; the others, in a run whose times are committed.
LAST = ROOT / "build/durations.json"
KEPT = ROOT / "tests/durations.json"
BUDGET = ROOT / "tests/budget.toml"
#: A room may take this many times its budget, by the pace of the machine, before the run fails.
TOLERATED = 1.5


def read_durations() -> dict[str, float]:
    """Return the wall seconds that each file of tests took when it ran last."""
    found: dict[str, float] = {}
    for path in (KEPT, LAST):  # the last run may have been of a few files
        if path.exists():
            rows = json.loads(path.read_text())
            found |= {name: row["wall"] for name, row in rows.items()}
    return found


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its ended children."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def room_of(name: str) -> str:
    """Return the room of a file: the folder of ``tests/`` that it is in."""
    parts = Path(name).parts
    return parts[1] if len(parts) > 2 else "."


def rooms_over(
    spent: dict[str, float], budget: dict[str, float], machine: float = 1.0
) -> list[str]:
    """Return a line for each room that took more than its seconds, or that has no budget.

    Args:
        spent: CPU seconds by room.
        budget: What each may take.
        machine: How many times the usual seconds this machine takes (``tests/pace.py``). All rooms
            together fail by it; one room fails by the pace of all others.
    """
    known = spent.keys() & budget.keys()
    totals = (sum(of[room] for room in known) for of in (spent, budget))
    return [
        *(line for room in sorted(spent) if (line := _over(room, spent, budget, known))),
        *([] if len(known) < 2 else filter(None, [_state("all", *totals, max(machine, 1.0))])),
    ]


def _over(room: str, spent: dict[str, float], budget: dict[str, float], known: Set[str]) -> str:
    """Return what is wrong with a room's seconds, or nothing."""
    if room not in budget:
        return f"{room}: {spent[room]:.0f} CPU s, and no budget. Add it to tests/budget.toml."
    others = known - {room}
    usual = sum(budget[name] for name in others)
    pace = sum(spent[name] for name in others) / usual if usual else 1.0
    return _state(room, spent[room], budget[room], max(pace, 1.0))


def _state(room: str, seconds: float, allowed: float, pace: float = 1.0) -> str:
    if seconds <= allowed:
        return ""
    state = "FAILED" if seconds > TOLERATED * allowed * pace else "over"
    return f"{room}: {seconds:.0f} CPU s of {allowed:.0f}: {state}."


class Durations:
    """Adds up what tests took, in the process that prints the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.files: dict[str, Counter[str]] = {}
        #: CPU seconds of this process and its workers, with what is no test's.
        self.total = 0.0
        self._samples: list[float] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test."""
        properties = dict(report.user_properties)
        found, pace_seconds = properties.get("seconds"), properties.get("pace")
        if report.when == "teardown" and isinstance(pace_seconds, float):
            self._samples.append(pace_seconds)
        if report.when == "teardown" and isinstance(found, list | tuple):
            row = self.files.setdefault(report.nodeid.split("::")[0], Counter())
            row.update(cpu=found[0], wall=found[1], items=1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what files took; fail where a room took far too long."""
        self.total = cpu_seconds()
        LAST.parent.mkdir(exist_ok=True)
        rows = {
            name: {key: round(row[key], 2) for key in ("items", "cpu", "wall")}
            for name, row in sorted(self.files.items())
        }
        LAST.write_text(json.dumps(rows, indent=0) + "\n")
        if any("FAILED" in line for line in self._over()) and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _rooms(self) -> dict[str, Counter[str]]:
        rooms: dict[str, Counter[str]] = {}
        for name, row in self.files.items():
            rooms.setdefault(room_of(name), Counter()).update(row)
        of_tests = sum(row["cpu"] for row in rooms.values())
        rooms["workers"] = Counter(cpu=max(self.total - of_tests, 0.0))
        return rooms

    def _over(self) -> list[str]:
        budget = tomllib.loads(BUDGET.read_text())["cpu_seconds"]
        spent = {name: row["cpu"] for name, row in self._rooms().items()}
        return rooms_over(spent, budget, self._machine())

    def _machine(self) -> float:
        return statistics.median(self._samples or [pace.USUAL]) / pace.USUAL

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the rooms, the dearest first, and those over their budget."""
        terminalreporter.section("rooms: items, CPU seconds, wall seconds")
        rooms = sorted(self._rooms().items(), key=lambda pair: -pair[1]["cpu"])
        for name, row in rooms:
            terminalreporter.write_line(
                f"{name:<14}{row['items']:>7.0f}{row['cpu']:>9.1f}{row['wall']:>9.1f}"
            )
        items, cpu = sum(r["items"] for _, r in rooms), sum(r["cpu"] for _, r in rooms)
        terminalreporter.write_line(f"{'all':<14}{items:>7.0f}{cpu:>9.1f}")
        terminalreporter.write_line(
            f"pace: a fixed piece of work took {self._machine():.2f} times its usual CPU seconds"
        )
        for line in self._over():
            terminalreporter.write_line(f"over budget: {line}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Whole runs of circle 1 are held to the budget; parts of it, or --all, are not."""
    parser.addoption("--durations-of-rooms", action="store_true", help="and fail over budget")


def pytest_configure(config: pytest.Config) -> None:
    """Add up in the main process only."""
    if config.getoption("--durations-of-rooms"):
        config.pluginmanager.register(Durations(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Note what stands on the clocks before a test's fixtures are made."""
    item.stash[_BEGUN] = cpu_seconds(), time.monotonic()
    item.stash[_IS_LAST] = nextitem is None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in a test's last report what all of it took."""
    report = yield
    if report.when != "teardown" or not item.stash[_IS_LAST]:
        item.stash[_ENDED] = cpu_seconds(), time.monotonic()
    if report.when == "teardown":
        seconds = [
            end - begin for begin, end in zip(item.stash[_BEGUN], item.stash[_ENDED], strict=True)
        ]
        report.user_properties.append(("seconds", [round(value, 4) for value in seconds]))
        if (sample := _SAMPLER.take()) is not None:
            report.user_properties.append(("pace", sample))
    return report


_SAMPLER = pace.Sampler()
_BEGUN, _ENDED = pytest.StashKey[tuple[float, float]](), pytest.StashKey[tuple[float, float]]()
_IS_LAST = pytest.StashKey[bool]()
