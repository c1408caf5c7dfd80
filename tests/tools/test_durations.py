"""A room that takes more than its seconds is named, and fails the run at 1.5 times."""

from __future__ import annotations

import pytest

from tests import durations

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


@pytest.mark.parametrize(("others", "state"), [(100.0, "FAILED"), (140.0, "over"), (900.0, "over")])
def test_a_room_is_measured_by_the_pace_of_the_others(others, state):
    budget = {"engine": 10.0, "models": 100.0}
    (line,) = [
        line
        for line in durations.rooms_over({"engine": 20.0, "models": others}, budget)
        if line.startswith("engine")
    ]
    assert line.endswith(f"{state}.")
