"""The house rules that a machine can judge: sizes, docstrings, reads of the environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "quire").rglob("*.py"))
NATIVE = sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in {".cpp", ".h", ".inc"})
OWN_TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
MAX_ROOM_FILES = 20
ROOMS = sorted({path.parent for path in SOURCES} - {ROOT / "quire"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed() -> dict[str, ast.Module]:
    """Return the syntax of each file of the package, by its name."""
    assert SOURCES, "no such folder"
    return {name(path): ast.parse(path.read_text()) for path in SOURCES}


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a block and of those inside it."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, block, ()):
            yield statement
            yield from statements_in(statement)


@cache
def statements() -> list[tuple[str, ast.AST]]:
    """Return every statement of every file, with the file's name."""
    return [(file, one) for file, module in parsed().items() for one in statements_in(module)]


def functions() -> Iterator[tuple[str, Function]]:
    for file, node in statements():
        if isinstance(node, Function):
            yield f"{file}:{node.lineno} {node.name}", node


def test_file_is_not_too_long() -> None:
    files = [*SOURCES, *NATIVE, *OWN_TESTS]
    lines = {name(path): len(path.read_text().splitlines()) for path in files}
    assert {file: count for file, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_rooms_have_few_files() -> None:
    counts = {name(room): len(list(room.glob("*.py"))) for room in ROOMS}
    assert {room: count for room, count in counts.items() if count > MAX_ROOM_FILES} == {}


def test_rooms_say_what_is_in_them() -> None:
    inits = [room / "__init__.py" for room in ROOMS]
    assert [name(path) for path in inits if not path.exists()] == []
    texts = {path: ast.get_docstring(parsed()[name(path)]) or "" for path in inits}
    house = {path: text for path, text in texts.items() if path.parent.parent == ROOT / "quire"}
    assert [name(path) for path, text in house.items() if text.count("\n") < 2] == []


def test_tests_lie_in_the_rooms_of_what_they_test() -> None:
    tops = {room.name for room in ROOMS if room.parent == ROOT / "quire"}
    folders = {path.parent.relative_to(ROOT / "tests") for path in OWN_TESTS}
    mirrored = {folder for folder in folders if folder.parts and folder.parts[0] in tops}
    tested = {folder for folder in mirrored if list((ROOT / "tests" / folder).glob("test_*.py"))}
    assert [
        str(folder) for folder in sorted(tested) if not (ROOT / "quire" / folder).is_dir()
    ] == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for file, node in statements():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            homes.setdefault(node.name, []).append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def num_lines(node: Function) -> int:
    """Count the lines of a function's body after its docstring."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_are_short() -> None:
    lines = {function: num_lines(node) for function, node in functions()}
    assert {f: count for f, count in lines.items() if count > MAX_FUNCTION_LINES} == {}


def num_parameters(arguments: ast.arguments) -> int:
    """Count a function's parameters, ``self`` and ``cls`` apart."""
    named = [*arguments.posonlyargs, *arguments.args]
    bound = bool(named) and named[0].arg in {"self", "cls"}
    rest = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return len(named) - bound + len(arguments.kwonlyargs) + len(rest)


def test_functions_take_few_parameters() -> None:
    counts = {function: num_parameters(node.args) for function, node in functions()}
    assert {f: count for f, count in counts.items() if count > MAX_PARAMETERS} == {}


def test_module_has_a_docstring() -> None:
    assert [file for file, module in parsed().items() if not ast.get_docstring(module)] == []


def test_environment_is_read_in_one_place() -> None:
    texts = {name(path): path.read_text() for path in SOURCES}
    readers = [file for file, text in texts.items() if "os.environ" in text or "os.getenv" in text]
    assert readers == ["quire/system/env.py"]


def test_no_wildcard_imports() -> None:
    found = [
        f"{file}:{node.lineno}"
        for file, node in statements()
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]
    assert found == []
