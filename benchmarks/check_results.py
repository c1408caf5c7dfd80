"""Judge the result files that README and docs name: their numbers, their age; of all, the commits.

``python -m benchmarks.check_results`` is a part of ``scripts/check``. Owns what is asked of a file
that is named; what a number must reach is in :mod:`benchmarks.wanted`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import wanted

ROOT = Path(__file__).parents[1]
#: Commits to the rooms that a result measures, after it, with which it still counts.
MOST_COMMITS = 400
_NAMED = re.compile(r"[\w.-]+\.json")
_IN_FOLDER = re.compile(r"benchmarks/results/([\w.-]+\.json)")


class History:
    """The commits before ``HEAD``, itself included.

    Attributes:
        parents: By full hash.
        files: The paths that a commit changed, by full hash; none of a merge.
    """

    def __init__(self, root: Path) -> None:
        """Read it.

        Raises:
            ValueError: It is not there, or not whole.
        """
        if self._git(root, "rev-parse", "--is-shallow-repository").strip() != "false":
            raise ValueError(
                "[results] the history must be whole; got a shallow clone. "
                "Run git fetch --unshallow."
            )
        self.parents: dict[str, list[str]] = {}
        self.files: dict[str, list[str]] = {}
        log = self._git(root, "log", "--name-only", "--no-renames", "--format=%x00%H %P")
        for entry in log.split("\0")[1:]:
            head, _, paths = entry.partition("\n")
            name, *parents = head.split()
            self.parents[name], self.files[name] = parents, paths.split()

    @staticmethod
    def _git(root: Path, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(
                f"[results] the git history must be readable; got: {done.stderr.strip()}. "
                "Run this in a clone."
            )
        return done.stdout

    def find(self, commit: str) -> str | None:
        """Return the full hash of a commit, or None when none or several begin so."""
        found = [name for name in self.parents if name.startswith(commit)]
        return found[0] if commit and len(found) == 1 else None

    def age(self, commit: str, folders: tuple[str, ...]) -> int:
        """Return how many commits that are not before ``commit`` changed the folders."""
        before, left = set(), [commit]
        while left:
            name = left.pop()
            if name not in before:
                before.add(name)
                left += self.parents[name]
        return sum(
            any(path.startswith(folders) for path in paths)
            for name, paths in self.files.items()
            if name not in before
        )


def folder(room: str) -> str:
    """Return the path of a room: ``native``, a path as it is, or a folder of ``quire``."""
    return room if "/" in room or room == "native" else f"quire/{room}"


def commits(document: dict[str, Any]) -> list[str]:
    """Return the commits that a result was measured at, without the mark of a changed tree."""
    runs = [document] if "commit" in document else document.get("runs", {}).values()
    return sorted({run["commit"].rstrip("+") for run in runs})


def named(root: Path) -> tuple[list[str], list[str]]:
    """Return the result files that README and docs name, and complaints of those not there."""
    results = {path.name for path in (root / "benchmarks/results").glob("*.json")}
    found, complaints = set(), []
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = page.read_text()
        found |= results & set(_NAMED.findall(text))
        complaints += [
            f"[results] {page.relative_to(root)} must name result files that are there; "
            f"got benchmarks/results/{name}. Name another, or commit it."
            for name in sorted(set(_IN_FOLDER.findall(text)) - results)
        ]
    return sorted(found), complaints


def _claims(root: Path, name: str, document: dict[str, Any]) -> Iterator[str]:
    """Complain of rooms and rules that are not those of ``claims.toml``, or not there."""
    said = wanted.claim(name.removesuffix(".json"), root / "benchmarks/claims.toml")
    if not said.get("measures"):
        yield (
            f"[results] {name} must have a table in benchmarks/claims.toml with what it measures; "
            "got none. Add one."
        )
        return
    rules = {
        path: {key: value for key, value in rule.items() if key != "missed"}
        for path, rule in document.get("wanted", {}).items()
    }
    if document.get("measures") != said["measures"] or rules != said.get("wanted", {}):
        yield (
            f"[results] {name} must have measures and wanted as in benchmarks/claims.toml; "
            f"got {document.get('measures')}, {rules}. Copy them."
        )
    for room in said["measures"]:
        if not (root / folder(room)).exists():
            yield f"[results] {name} must measure rooms that exist; got {room}. Name the new one."


def _numbers(name: str, document: dict[str, Any]) -> Iterator[str]:
    """Complain of numbers that miss what is wanted and do not say why."""
    missed = {miss.path: miss for miss in wanted.misses(document)}
    for path, rule in document.get("wanted", {}).items():
        why = rule.get("missed")
        if path in missed and not (why and missed[path].got):
            got = ", ".join(f"{number:.5g}" for number in missed[path].got) or "no number there"
            yield (
                f"[results] {name}: {path} must be {wanted.phrase(rule)}; got {got}. "
                "Mend it and measure again, or add missed = why to the rule in the file."
            )
        if why is not None and path not in missed:
            yield (
                f"[results] {name}: {path} must have no missed, as it is {wanted.phrase(rule)}; "
                f"got {why!r}. Take it out."
            )


def _again(document: dict[str, Any]) -> str:
    return f"Run {document.get('command', 'its benchmark')} again"


def _lost(history: History, name: str, document: dict[str, Any]) -> Iterator[str]:
    """Complain of commits that are not in the history."""
    found = {commit: history.find(commit) for commit in commits(document)}
    lost = [commit for commit, full in found.items() if full is None]
    if lost or not found:
        got = ", ".join(lost) or "none"
        yield f"[results] {name} must name commits of this history; got {got}. {_again(document)}."


def _age(history: History, name: str, document: dict[str, Any]) -> Iterator[str]:
    """Complain of results that are too old."""
    again, found = _again(document), {one: history.find(one) for one in commits(document)}
    rooms = document.get("measures", [])
    folders = tuple(f"{path}/" if "." not in path else path for path in map(folder, rooms))
    ages = {history.age(full, folders): commit for commit, full in found.items() if full}
    oldest = max(ages, default=0)
    if oldest > MOST_COMMITS and not document.get("kept"):
        yield (
            f"[results] {name} must be at most {MOST_COMMITS} commits of {', '.join(rooms)} old; "
            f"got {oldest} since {ages[oldest]}. {again}, or add kept = why to the file."
        )
    if oldest <= MOST_COMMITS and "kept" in document:
        yield (
            f"[results] {name} must not say why it is kept before it is {MOST_COMMITS} commits "
            f"old; got {oldest}. Take it out."
        )


def check(root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Return what is wrong with the files that are named, and what is missed or kept knowingly.

    Without a whole history commits and ages are not judged, and that is said.
    """
    names, complaints = named(root)
    notes, history = [], None
    try:
        history = History(root)
    except ValueError as error:
        notes.append(f"commits and ages were not judged: {error}")
    if history is not None:  # of those that no page names, too
        for path in sorted((root / "benchmarks/results").glob("*.json")):
            complaints += _lost(history, path.name, json.loads(path.read_text()))
    for name in names:
        document = json.loads((root / "benchmarks/results" / name).read_text())
        try:
            complaints += _claims(root, name, document)
            complaints += _numbers(name, document)
        except ValueError as error:
            complaints.append(f"{name}: {error}")
        if history is not None:
            complaints += _age(history, name, document)
        if "kept" in document:
            notes.append(f"{name} is kept: {document['kept']}")
        notes += [
            f"{name} misses {path}, {wanted.phrase(rule)}: {rule['missed']}"
            for path, rule in document.get("wanted", {}).items()
            if "missed" in rule
        ]
    return complaints, notes


def main() -> None:
    complaints, notes = check()
    for line in notes:
        print(line)
    for line in complaints:
        print(line, file=sys.stderr)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
