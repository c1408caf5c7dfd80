"""The house rules that a machine can judge: sizes, docstrings, reads of the environment."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "quire").rglob("*.py"))
NATIVE = sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in {".cpp", ".h", ".inc"})
OWN_TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8


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


def num_parameters(arguments: ast.arguments) -> int:
    """Count a function's parameters, ``self`` and ``cls`` apart."""
    named = [*arguments.posonlyargs, *arguments.args]
    bound = bool(named) and named[0].arg in {"self", "cls"}
    rest = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return len(named) - bound + len(arguments.kwonlyargs) + len(rest)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_functions_take_few_parameters(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = num_parameters(node.args)
            assert count <= MAX_PARAMETERS, f"{node.name} has {count} parameters"


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
