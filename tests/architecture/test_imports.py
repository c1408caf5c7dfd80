"""What a package imports: no circle inside one, and nothing heavy at start."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(p.parent.name for p in (ROOT / "quire").glob("*/__init__.py"))


def imported_names(source: str, package: str) -> set[str]:
    """Return the dotted names that a module of ``package`` imports, in functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else []), *([node.module] if node.module else [])]
            names |= {".".join([*parts, alias.name]) for alias in node.names}
    return names


def import_graph(files: dict[str, str]) -> dict[str, set[str]]:
    """Return which modules each module of ``files`` (dotted name to source) imports.

    A package is named without ``__init__``; a name that is no module counts for the module that
    it is taken from.
    """
    graph: dict[str, set[str]] = {}
    for module, source in files.items():
        bare = module.removesuffix(".__init__")
        package = bare if bare != module else bare.rpartition(".")[0]
        graph[bare] = imported_names(source, package)
    for module, names in graph.items():
        known = {n if n in graph else n.rpartition(".")[0] for n in names}
        graph[module] = {n for n in known if n in graph and n != module}
    return graph


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle of imports, the first again at the end; [] without."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def read_package(name: str) -> dict[str, str]:
    """Return the modules of a package of quire, by dotted name."""
    folder = ROOT / "quire" / name
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for path in sorted(folder.rglob("*.py"))
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_no_import_circle(package: str) -> None:
    circle = find_circle(import_graph(read_package(package)))
    assert not circle, " -> ".join(circle)


@pytest.mark.parametrize(
    ("second", "circle"),
    [
        ("import a.first", True),
        ("from a import first", True),
        ("from . import first", True),
        ("from .first import thing", True),
        ("if TYPE_CHECKING:\n    from a.first import thing", True),
        ("def later():\n    from a.first import thing", True),
        ("from a import other", False),
    ],
)
def test_circles_are_found(second: str, circle: bool) -> None:
    files = {"a.__init__": "", "a.first": "from a.second import x", "a.second": second}
    found = find_circle(import_graph(files))
    assert set(found) == ({"a.first", "a.second"} if circle else set())


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
        ("import quire.engine.scheduling.scheduler", {"numpy", "torch"}),
        ("import quire.text.tokenizers.tokenizer", {"numpy", "torch"}),
        ("from quire import LLM", {"torch", "starlette", "transformers"}),
        ("import quire.distributed.torch_group", {"torch"}),
    ],
)
def test_import_stays_light(statement: str, forbidden: set[str]) -> None:
    assert not loaded_modules(statement) & forbidden
