"""The Dockerfile read as it stands; ``scripts/check_dockerfile`` runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.check_dockerfile import Build, context, read_instructions

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = read_instructions((ROOT / "Dockerfile").read_text())
LAST = dict(INSTRUCTIONS)


def test_the_check_knows_every_instruction():
    names = {name for name, _ in INSTRUCTIONS} - {"FROM"}
    assert [name for name in names if not hasattr(Build, f"_{name.lower()}")] == []


def test_it_serves_as_a_user_without_rights_and_says_how_it_is():
    names = [name for name, _ in INSTRUCTIONS]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    assert LAST["USER"] not in ("root", "0")
    assert "/health" in json.loads(LAST["HEALTHCHECK"].partition(" CMD ")[2])[-1]


def test_its_command_is_one_of_quire():
    assert json.loads(LAST["ENTRYPOINT"]) == ["quire"]
    command, *flags = json.loads(LAST["CMD"])
    quire = [sys.executable, "-m", "quire.cli.main", command, "--help"]
    shown = subprocess.run(quire, capture_output=True, text=True, check=True).stdout
    assert [flag for flag in flags if flag.startswith("--") and flag not in shown] == []


def test_the_context_holds_what_a_build_needs_and_no_leftovers():
    files = context()
    assert {"pyproject.toml", "CMakeLists.txt", "scripts/build_wheels"} <= set(files)
    assert not [path for path in files if path.startswith(("tests/", "build/", ".venv"))]


def test_instructions_are_read_line_by_line():
    text = "FROM a AS b\n# note\n\nRUN x y\n"
    assert read_instructions(text) == [("FROM", "a AS b"), ("RUN", "x y")]
