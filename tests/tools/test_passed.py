"""A check is due where its files have changed since the commit at which it passed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tools import passed


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a kernel, a document and an empty list."""
    (tmp_path / "native").mkdir()
    (tmp_path / "native/kernel.cpp").write_text("one")
    (tmp_path / "README.md").write_text("one")
    git(tmp_path, "init", "-q")
    monkeypatch.setattr(passed, "ROOT", tmp_path)
    monkeypatch.setattr(passed, "LIST", tmp_path / "passed.json")
    (tmp_path / "passed.json").write_text("{}")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *own, *words], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a change", "--allow-empty")


def test_what_never_passed_is_due(repository, capsys):
    assert passed.is_due("arm")
    assert "no commit yet" in capsys.readouterr().out


def test_what_passed_is_due_when_its_files_change(repository, capsys):
    passed.record("arm")
    commit(repository)
    assert not passed.is_due("arm")
    (repository / "README.md").write_text("two")
    commit(repository)
    assert not passed.is_due("arm")
    (repository / "native/kernel.cpp").write_text("two")
    assert passed.is_due("arm")
    commit(repository)
    assert passed.is_due("arm")
    assert "native/kernel.cpp" in capsys.readouterr().out


def test_a_commit_that_is_not_in_the_history_is_no_pass(repository):
    (repository / "passed.json").write_text(json.dumps({"arm": "0" * 40}))
    assert passed.is_due("arm")


def test_what_is_not_committed_is_not_recorded(repository, capsys):
    (repository / "native/kernel.cpp").write_text("two")
    passed.record("arm")
    assert "not recorded" in capsys.readouterr().out
    assert json.loads((repository / "passed.json").read_text()) == {}
