"""A room that takes more than its seconds is named, and fails the run at 1.5 times."""

from __future__ import annotations

import pytest

from tests import durations, pace

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(9.9, []), (10.5, ["over"]), (15.5, ["FAILED"])],
)
def test_a_room_over_its_budget(seconds, said):
    lines = durations.rooms_over({"engine": seconds}, {"engine": 10.0})
    assert len(lines) == len(said)
    assert all(word in line and "engine" in line for word, line in zip(said, lines, strict=True))


def test_a_room_without_a_budget_is_named():
    (line,) = durations.rooms_over({"new": 1.0}, {})
    assert "no budget" in line and "tests/budget.toml" in line


@pytest.mark.parametrize("allowed", [100.0, 0.0001])
def test_a_run_that_takes_too_long_fails(pytester, monkeypatch, allowed):
    """A child's seconds count: half of them are spent in servers."""
    pytester.makepyfile(
        test_it="""
        import subprocess, sys
        def test_it():
            subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
        """
    )
    (pytester.path / "budget.toml").write_text(f'[cpu_seconds]\n"." = {allowed}\nworkers = 1000\n')
    monkeypatch.setattr(durations, "BUDGET", pytester.path / "budget.toml")
    monkeypatch.setattr(durations, "LAST", pytester.path / "build/durations.json")
    words = ["-p", "no:asyncio", "-p", "tests.durations", "--durations-of-rooms"]
    done = pytester.inline_run(*words, plugins=[durations])
    done.assertoutcome(passed=1)
    assert done.ret == (1 if allowed < 1 else 0)
    (row,) = durations.json.loads(durations.LAST.read_text()).values()
    assert row["items"] == 1 and row["cpu"] > 0.01


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (100.0, ["engine: 20 CPU s of 10: FAILED.", "all: 120 CPU s of 110: over."]),
        (140.0, ["engine: 20 CPU s of 10: over.", "models: 140 CPU s of 100: over.",
                 "all: 160 CPU s of 110: over."]),
    ],
)  # fmt: skip
def test_a_room_is_measured_by_the_pace_of_the_others(others, said):
    budget = {"engine": 10.0, "models": 100.0}
    assert durations.rooms_over({"engine": 20.0, "models": others}, budget) == said


@pytest.mark.parametrize(("machine", "said"), [(0.8, "FAILED"), (1.3, "FAILED"), (1.4, "over")])
def test_all_rooms_together_are_measured_by_the_pace_of_the_machine(machine, said):
    spent, budget = {"engine": 20.0, "models": 200.0}, {"engine": 10.0, "models": 100.0}
    assert durations.rooms_over(spent, budget, machine)[-1] == f"all: 220 CPU s of 110: {said}."


def test_the_pace_is_taken_while_tests_run(pytester, monkeypatch, capsys):
    pytester.makepyfile("def test_it(): pass")
    monkeypatch.setattr(durations, "LAST", pytester.path / "build/durations.json")
    monkeypatch.setattr(durations, "_SAMPLER", pace.Sampler())
    monkeypatch.setattr(pace, "sample", lambda: 3 * pace.USUAL)
    words = ["-p", "no:asyncio", "-p", "tests.durations", "--durations-of-rooms"]
    pytester.inline_run(*words, plugins=[durations]).assertoutcome(passed=1)
    assert "took 3.00 times its usual" in capsys.readouterr().out


def test_a_process_takes_a_sample_now_and_then(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    sampler = pace.Sampler()
    first, second = sampler.take(), sampler.take()
    now += pace.EVERY
    assert first is not None and second is None and sampler.take() is not None
