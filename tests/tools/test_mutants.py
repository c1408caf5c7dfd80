"""The tables of mutants against the tree, without trying any; which tests look at a file."""

from __future__ import annotations

import pytest

from tools import rooms
from tools.mutants import report, table
from tools.mutants.table import ROOT, TABLES, Mutant, read_mutants


def test_every_mutant_fits_its_file_and_names_tests_that_are_there():
    wrong = []
    for mutant in read_mutants().values():
        try:
            changed = mutant.applied((ROOT / mutant.file).read_text())
            if mutant.file.endswith(".py"):
                compile(changed, mutant.file, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            wrong.append(str(error))
        for test in (mutant.killed_by.partition("::")[0], *mutant.rooms):
            if test and not (ROOT / test).exists():
                wrong.append(f"{mutant.name}: no {test}")
        function = mutant.killed_by.partition("::")[2].partition("[")[0].rpartition("::")[2]
        file = mutant.killed_by.partition("::")[0]
        if function and f"def {function}(" not in (ROOT / file).read_text():
            wrong.append(f"{mutant.name}: no {function} in {file}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("text", ["a = 1\n", "b = 1\n", "a = 1\na = 1\n"])
def test_a_mutant_is_put_where_its_text_stands_once(text: str):
    mutant = Mutant("one", "any.py", "a = 1", "a = 2")
    if text.count("a = 1") == 1:
        assert mutant.applied(text) == "a = 2\n"
    else:
        with pytest.raises(ValueError, match="once"):
            mutant.applied(text)


def test_who_killed_a_mutant_is_written_down_and_all_else_stays(tmp_path, monkeypatch):
    text = (TABLES / "engine.toml").read_text()
    (tmp_path / "engine.toml").write_text(text)
    monkeypatch.setattr(table, "TABLES", tmp_path)
    before = read_mutants()
    name, other = list(before)[:2]
    table.record({name: 'tests/a.py::test_b["c"]'})
    after = read_mutants()
    assert after[name].killed_by == 'tests/a.py::test_b["c"]'
    assert after[other] == before[other] and list(after) == list(before)
    table.record({name: before[name].killed_by})
    assert (tmp_path / "engine.toml").read_text() == text


def test_an_untried_mutant_counts_against_the_small_circle():
    killed = {"circle": 1, "tried": 1}
    missed, alive = {"circle": 3, "tried": 3}, {"circle": None, "tried": 3}
    unknown = {"circle": None, "tried": 1}
    verdicts = dict(enumerate([killed, killed, missed, alive, unknown]))
    found = report.summary(verdicts)
    assert (found["killed_by_circle_1"], found["killed_by_circle_3"]) == (2, 4)
    assert found["ratio"] == 0.5


@pytest.mark.parametrize(
    ("file", "nearest"),
    [
        ("quire/engine/scheduling/fair_queue.py", "tests/engine/scheduling/test_fair_queue.py"),
        ("quire/planner/parallel_costs.py", "tests/planner/test_parallel_costs.py"),
        ("quire/llm/replicas/dispatcher.py", "tests/llm/replicas/test_dispatcher.py"),
        ("native/cpu/norm.cpp", "tests/kernels/test_norm.py"),
        ("tests/served_engines.py", "tests/integration/test_remote_engines.py"),
        ("tests/system/test_heap.py", "tests/system/test_heap.py"),
        ("README.md", "tests/architecture/test_documents.py"),
    ],
)
def test_the_tests_that_look_at_a_file_come_nearest_first(file: str, nearest: str):
    assert next(iter(rooms.reached([file]))) == nearest


def test_a_test_that_starts_a_command_looks_at_all_that_it_imports():
    found = rooms.reached(["quire/server/lifecycle.py"])
    assert found["tests/cli/test_serve.py"] <= rooms.BY_COMMAND
    assert "tests/server/test_lifecycle.py" in list(found)[:3]


def test_what_everything_hangs_on_is_looked_at_by_all():
    assert len(rooms.reached(["pyproject.toml"])) == len(rooms.reached(["CMakeLists.txt"])) > 400
