"""The command as people run it: through the shell."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quire.cli.main import COMMANDS


def quire(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quire.cli.main", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


def test_help_lists_every_command():
    result = quire("--help")
    assert result.returncode == 0
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)


def test_help_imports_nothing_heavy():
    heavy = ("numpy", "torch", "tokenizers", "rich", "quire.llm")
    code = (
        "import sys; from quire.cli.main import run; run(['--help']);"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version():
    result = quire("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("quire 0.")


def test_unknown_command_is_misuse():
    result = quire("sreve")
    assert (result.returncode, result.stdout) == (2, "")
    assert "sreve" in result.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion(shell):
    result = quire("completion", shell)
    assert result.returncode == 0
    assert "_QUIRE_COMPLETE" in result.stdout


def test_completion_of_an_unknown_shell_is_misuse():
    assert quire("completion", "csh").returncode == 2
