"""What passed at which commit: checks that CI repeats only where their code has changed since.

``python -m tools.passed due arm`` exits with 0 where it has; ``python -m tools.passed record arm``
is what the check itself runs when it has passed. The list is ``tools/passed.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tools/passed.json"
#: The files that a check is about.
PATHS = {
    "arm": ("CMakeLists.txt", "native", "quire/kernels", "scripts/check_arm", "tools/check_arm"),
    "ray": (
        "quire/settings/parallel_options.py",
        "quire/distributed",
        "quire/llm/replicas",
        "quire/runner/ranks",
        "scripts/test_ray",
        "tests/ray",
        "tools/ray_cluster.py",
    ),
}


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def changed(paths: Sequence[str], commit: str) -> list[str]:
    """Return files of some paths that differ from a commit; all where it is not in the history."""
    found = _git("diff", "--name-only", commit, "--", *paths)
    if found.returncode:
        found = _git("ls-files", "--", *paths)
    return found.stdout.split()


def is_due(check: str) -> bool:
    """Return whether the check's files have changed since it last passed; say which."""
    commit = json.loads(LIST.read_text()).get(check, "")
    files = changed(PATHS[check], commit) if commit else ["no commit yet"]
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    reason = f"changed: {', '.join(files[:3])}{more}" if files else "nothing changed"
    print(f"{check}: {reason} since it passed at {commit or 'no commit'}")
    return bool(files)


def record(check: str) -> None:
    """Note that the check has passed at this commit, unless its files differ from it."""
    if files := changed(PATHS[check], "HEAD"):
        print(f"{check}: not recorded: {files[0]} is not committed")
        return
    passed = json.loads(LIST.read_text())
    passed[check] = _git("rev-parse", "HEAD").stdout.strip()
    LIST.write_text(json.dumps(passed, indent=1, sort_keys=True) + "\n")
    print(f"{check}: passed at {passed[check]}; commit tools/passed.json")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["due", name] if name in PATHS:
            sys.exit(not is_due(name))
        case ["record", name] if name in PATHS:
            record(name)
        case _:
            sys.exit(f"usage: python -m tools.passed due|record {'|'.join(PATHS)}")
