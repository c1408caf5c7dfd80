"""Circle 3: each part runs, what passed on this code is kept, what came of it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results
from tests.tools.test_passed import commit, git
from tools import passed, run_all
from tools.run_all import Part, covered

PARTS = [
    Part("passes", ("sh", "-c", "echo one >> runs; echo seen"), tests=("tests/a",)),
    Part("waits", ("sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo waited"), waits=True),
    Part("fails", ("sh", "-c", "echo two >> runs; touch go; echo why; exit 3")),
    Part("measures", ("sh", "-c", "cat runs"), measures=True),
]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file, in which the parts run."""
    (tmp_path / "code.py").write_text("one")
    (tmp_path / ".gitignore").write_text("runs\ngo\nresults\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    head = passed._git
    monkeypatch.setattr(passed, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "commit", lambda: head("rev-parse", "HEAD").stdout.strip())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document() -> dict:
    return json.loads((results.RESULTS / "all_tests.json").read_text())


def test_each_part_runs_whatever_became_of_the_others(repository):
    run_all.run(PARTS, seed=7)
    found = document()["results"]["parts"]
    assert {name: part["exit_code"] for name, part in found.items()} == {
        "passes": 0,
        "waits": 0,
        "fails": 3,
        "measures": 0,
    }
    assert found["waits"]["last_line"] == "waited"
    assert found["fails"]["last_line"] == "why"
    assert all(run["seed"] == 7 for run in document()["runs"].values())


def test_what_passed_is_run_again_once_the_code_has_changed(repository, capsys):
    run_all.run(PARTS, seed=7)
    run_all.run(PARTS, seed=8)
    assert (repository / "runs").read_text().split() == ["one", "two", "two"]
    assert "passes: has passed on this code" in capsys.readouterr().out
    (repository / "README.md").write_text("words")
    commit(repository)
    run_all.run(PARTS, seed=9)
    assert (repository / "runs").read_text().split() == ["one", "two", "two", "two"]
    (repository / "code.py").write_text("two")
    run_all.run(PARTS, seed=10)
    assert (repository / "runs").read_text().split() == ["one", *3 * ["two"], "one", "two"]


@pytest.mark.parametrize(
    ("file", "again"), [("tests/b/c.py", 0), ("tests/a/c.py", 1), ("tests/help.py", 1)]
)
def test_a_part_is_kept_when_tests_change_that_it_does_not_run(repository, file, again):
    path = repository / file
    path.parent.mkdir(parents=True)
    path.write_text("one")
    commit(repository)
    run_all.run(PARTS, seed=7)
    path.write_text("two")
    run_all.run(PARTS[:1], seed=8)
    assert (repository / "runs").read_text().split().count("one") == 1 + again


def test_what_a_signal_ended_is_no_number_below_zero(repository):
    run_all.run([Part("killed", ("sh", "-c", "kill -TERM $$"))], seed=7)
    assert document()["results"]["parts"]["killed"]["exit_code"] == 128 + 15


def test_what_waits_ends_before_something_is_measured(repository):
    run_all.run(PARTS, seed=7)
    found = document()["results"]["parts"]
    assert found["waits"]["ended"] <= found["measures"]["begun"]


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0),
        ([(5, 9)], 4),
        ([(5, 9), (20, 21)], 5),
        ([(5, 9), (6, 7)], 4),
        ([(6, 12), (5, 9), (12, 13)], 8),
    ],
)
def test_seconds_in_which_two_parts_run_count_once(spans, seconds):
    assert covered(spans) == seconds
