"""Which test files look at a file of the tree: derived from imports, nearest first.

Imports of ``quire`` and ``tools`` come from grimp, those of tests and benchmarks from their syntax
trees, imports in functions included. A test that starts a command reaches all that the command
imports; it comes last.
"""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp

import quire

ROOT = Path(__file__).parents[1]
#: Distance of a test that reaches a module through a command alone, and of one of which no more is
#: known than that it may look at the file.
BY_COMMAND, ANYHOW = 50, 99
COMMAND = "quire.cli.main"
#: Where a test that has one of them in its text, or imports a file that has, starts a command.
_STARTS = ("quire.cli.main", "serve_process", "ServeProcess", '"quire"')
#: Files without Python's imports: the folder, and the tests that look at it.
_ROOMS = {
    "native/simd": ("tests/kernels", "tests/native"),
    "native/cpu": ("tests/kernels",),
    "native/include": ("tests/kernels",),
    "native/bindings": ("tests/kernels", "tests/native", "tests/speculative"),
    "native/runtime": ("tests/native", "tests/kernels", "tests/distributed", "tests/speculative"),
    "native/tests": (),
    "quire/assets": ("tests/cli", "tests/integration", "tests/server"),
    "deploy": ("tests/deploy",),
    "docs": ("tests/docs", "tests/architecture"),
    "benchmarks": ("tests/tools", "tests/architecture"),
    "scripts": ("tests/tools",),
}
#: What the whole suite hangs on.
_EVERYTHING = ("pyproject.toml", "CMakeLists.txt", "tests/conftest.py", "native/include/types.h")


def reached(changed: Iterable[str]) -> dict[str, int]:
    """Return the test files that look at some files, with their distance.

    That is the number of imports between, less where words of the paths are alike.

    Args:
        changed: Paths below the root of the tree.

    Returns:
        Paths of test files; the nearest come first.
    """
    found: dict[str, tuple[int, int, str]] = {}
    for path in changed:
        for test, distance in _reached(path).items():
            rank = _rank(test, distance, path)
            found[test] = min(rank, found.get(test, rank))
    return {test: rank[0] for test, rank in sorted(found.items(), key=lambda item: item[1])}


def changed_since(commit: str) -> list[str]:
    """Return the paths of files that differ from a commit's, and of those new to git."""
    commands = (
        ["git", "diff", "--name-only", "-z", commit],
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
    )
    texts = [
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for command in commands
    ]
    return [name for text in texts for name in text.split("\0") if name]


def _reached(path: str) -> dict[str, int]:
    """Return the tests of one file, unordered."""
    if path in _EVERYTHING:
        return dict.fromkeys(_all_tests(), ANYHOW)
    if _is_test(path):
        return {path: 0} if (ROOT / path).exists() else {}
    module, found = _module(path), {}
    if module is not None:
        found = _tests_above(module)
    if path.startswith("native/"):
        found = _tests_above("quire.kernels.cpu.native")
    for folder, rooms in _ROOMS.items():
        if path.startswith(f"{folder}/"):
            near = 1 if path.startswith("native/") else ANYHOW
            found |= {test: near for test in _all_tests() if test.startswith(rooms)}
    if path.startswith("tests/") and not found:  # a file that the tests of its room read
        room = "/".join(path.split("/")[:2])
        found = {test: 1 for test in _all_tests() if test.startswith(f"{room}/")}
    if Path(path).suffix == ".md" and "/" not in path:
        found = {test: 1 for test in _all_tests() if test.startswith(_ROOMS["docs"])}
    return found


def _rank(test: str, distance: int, path: str) -> tuple[int, int, str]:
    """Order tests: a word that folders have in common counts for an import less, of names for 3."""
    (folders, stem), (own_folders, own_stem) = _words(test), _words(path)
    alike = len(folders & own_folders) + 3 * len(stem & own_stem)
    return max(distance - alike, 0) if distance < BY_COMMAND else distance, -alike, test


def _words(path: str) -> tuple[set[str], set[str]]:
    """Return the words of a file's folders, the outermost apart, and those of its name."""
    *folders, name = Path(path).with_suffix("").parts[1:] or [""]
    words = {word for folder in folders for word in folder.split("_")}
    return words, set(name.split("_")) - {"test"}


def _tests_above(module: str) -> dict[str, int]:
    """Return the test files that import a module, over however many others."""
    importers, starting = _importers()
    distances, found = {module: 0}, [module]
    for one in found:  # grows while it is walked
        for importer in importers[one]:
            if importer not in distances:
                distances[importer] = distances[one] + 1
                found.append(importer)
    tests = {test: distances[name] for test in _all_tests() if (name := _name(test)) in distances}
    if COMMAND in distances:
        tests |= {test: BY_COMMAND for test in starting if test not in tests}
    return tests


@cache
def _importers() -> tuple[dict[str, set[str]], tuple[str, ...]]:
    """Return which modules import each module, and the test files that start commands."""
    graph = grimp.build_graph("quire", "tools", exclude_type_checking_imports=True, cache_dir=None)
    importers: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            importers[imported].add(module)
        if module.startswith("quire.cli."):  # it imports commands by name
            importers[module].add(COMMAND)
    known = set(graph.modules)
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    names = {_name(str(path.relative_to(ROOT))): path for path in files}
    starting = set()
    for name, path in names.items():
        source = path.read_text()
        if any(word in source for word in _STARTS) and name != "tests.conftest":
            starting.add(name)
        for imported in _imported(source, known | set(names)):
            importers[imported].add(name)
        if path.name == "conftest.py" and name != "tests.conftest":
            room = name.removesuffix("conftest")
            importers[name] |= {other for other in names if other.startswith(room)} - {name}
    grown = list(starting)
    for one in grown:
        new = {name for name in importers[one] if name in names} - starting
        starting |= new
        grown += new
    return importers, tuple(test for test in _all_tests() if _name(test) in starting)


def _imported(source: str, known: set[str]) -> Iterator[str]:
    """Yield the modules that a file imports, in functions too."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, attribute = name.partition(".")
            if package == "quire" and attribute in quire._HOMES:
                name = quire._HOMES[attribute].partition(":")[0]
            yield name if name in known else name.rpartition(".")[0]


@cache
def _all_tests() -> tuple[str, ...]:
    found = (ROOT / "tests").rglob("test_*.py")
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found))


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).name.startswith("test_") and path[-3:] == ".py"


def _module(path: str) -> str | None:
    """Return the module that a file is; None when it is none."""
    return _name(path) if path.endswith(".py") else None


def _name(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
