"""The house rules that a machine can judge: sizes, imports at start, reads of the environment."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "quire").rglob("*.py"))
NATIVE = sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in {".cpp", ".h", ".inc"})
OWN_TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *NATIVE, *OWN_TESTS], ids=name)
def test_file_is_not_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_environment_is_read_in_one_place(path: Path) -> None:
    text = path.read_text()
    if name(path) != "quire/core/env.py":
        assert "os.environ" not in text and "os.getenv" not in text


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_wildcard_imports(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert all(alias.name != "*" for alias in node.names)


def loaded_modules(statement: str) -> set[str]:
    """Return the top-level packages loaded after running ``statement`` in a fresh Python."""
    code = f"{statement}\nimport sys\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import quire", {"numpy", "torch", "rich", "tokenizers"}),
        ("import quire.cli.main", {"numpy", "torch", "tokenizers", "starlette"}),
        ("import quire.engine.scheduler", {"numpy", "torch"}),
        ("import quire.text.tokenizer", {"numpy", "torch"}),
        ("from quire import LLM", {"torch", "starlette", "transformers"}),
    ],
)
def test_import_stays_light(statement: str, forbidden: set[str]) -> None:
    assert not loaded_modules(statement) & forbidden
