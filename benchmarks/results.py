"""How every benchmark here measures and writes: interleaved rounds, medians, spread, one JSON file.

Owns timing statistics and the result file; knows nothing of what is measured. A file keeps medians,
ranges and spread of its samples, not the samples, and has one row of a table a line. It says, as
``benchmarks/claims.toml`` does, which rooms it ``measures`` and what is ``wanted``: a number and a
direction by path. ``scripts/check`` judges files that README or docs name; ``missed`` of a rule and
``kept`` of a file that is old are reasons, written by hand and gone when it is measured again.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import processor
from benchmarks.wanted import claim
from quire.system.processor import name_processor

RESULTS = Path(__file__).parent / "results"
#: Characters of the longest part of a file that is a row; a longer one is a table of rows.
LONGEST_ROW = 700


def summary(seconds: list[float]) -> dict[str, float]:
    """Return median, least, greatest and relative spread (interquartile range / median)."""
    ordered = sorted(seconds)
    median = statistics.median(ordered)
    quartiles = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else [median] * 3
    return {
        "median": median,
        "min": ordered[0],
        "max": ordered[-1],
        "spread": (quartiles[2] - quartiles[0]) / median if median else 0.0,
        "repeats": len(ordered),
    }


def interleave(
    cases: dict[str, Callable[[], Any]],
    *,
    warmup: int = 1,
    repeats: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """Time the cases in turn, round after round, so that a noisy moment hits all of them.

    Args:
        clock: ``time.thread_time`` for work of the calling thread alone; others do not stretch it.

    Returns:
        Per case the :func:`summary` of its seconds.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    for round_index in range(warmup + repeats):
        for name, run in cases.items():
            start = clock()
            run()
            elapsed = clock() - start
            if round_index >= warmup:
                times[name].append(elapsed)
    return {name: summary(seconds) for name, seconds in times.items()}


def machine() -> dict[str, Any]:
    """Return what the result was measured on."""
    cpuinfo = processor.read_cpuinfo()
    return {
        "cpu": name_processor(),
        "kind": processor.name_kind(cpuinfo),
        "isa": processor.instructions(cpuinfo),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def per_processor(name: str) -> str:
    """Return the name of a result file that each kind of processor has its own of."""
    return f"{name}_{processor.kind()}"


def commit() -> str:
    """Return the commit measured, with ``+`` after it when the tree has changes."""
    root = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", "../quire", "../native")
    return git("rev-parse", "--short", "HEAD") + ("+" if dirty else "")


def write(name: str, results: Any, **extra: Any) -> Path:
    """Write ``benchmarks/results/<name>.json`` with machine, commit, command and time."""
    RESULTS.mkdir(exist_ok=True)
    document = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": " ".join(["python", *(_relative(word) for word in sys.argv)]),
        "machine": machine(),
        **claim(name),
        **extra,
        "results": results,
    }
    path = RESULTS / f"{name}.json"
    save(path, document)
    return path


def merge(
    name: str, results: dict[str, dict[str, dict[str, Any]]], *, run: dict[str, Any], **extra: Any
) -> Path:
    """Put entries into ``benchmarks/results/<name>.json`` and keep the others that are there.

    Args:
        results: Entries by group and name. Each gets ``run``, the key of what is common to the
            entries measured together: commit, command, machine, time, and ``run`` as given.
        extra: Top-level fields.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = json.loads(path.read_text()) if path.exists() else {"runs": {}, "results": {}}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    document.pop("kept", None)
    document |= {"name": name, **claim(name), **extra}
    document["runs"][date] = {
        "commit": commit(),
        "command": " ".join(["python", *(_relative(word) for word in sys.argv)]),
        "machine": machine(),
        **run,
    }
    for group, entries in results.items():
        kept = document["results"].setdefault(group, {})
        kept |= {key: {**entry, "run": date} for key, entry in entries.items()}
    used = {entry["run"] for group in document["results"].values() for entry in group.values()}
    document["runs"] = {key: value for key, value in document["runs"].items() if key in used}
    save(path, document)
    return path


def save(path: Path, document: dict[str, Any]) -> None:
    """Write a result file: a line for each key of the head, and for each row of a table."""
    plain = json.loads(json.dumps(document))  # with keys that are words, and lists for tuples
    path.write_text(_lines(plain, 0) + "\n")


def _lines(node: Any, depth: int) -> str:
    """Return a part of a file as JSON: a row on one line, a table with a line for each row.

    An entry of a list is a row. So is a part that holds values and lists of them and, below the
    keys of the head, one that is short enough.
    """
    row = json.dumps(node)
    if not isinstance(node, dict | list) or not node or _is_row(node, row, depth):
        return row
    indent = " " * (depth + 1)
    if isinstance(node, list):
        rows = [indent + json.dumps(entry) for entry in node]
        return "[\n" + ",\n".join(rows) + f"\n{indent[1:]}]"
    rows = [f"{indent}{json.dumps(key)}: {_lines(part, depth + 1)}" for key, part in node.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent[1:]}}}"


def _is_row(node: dict[str, Any] | list[Any], row: str, depth: int) -> bool:
    """Return whether a part of a file, ``row`` as JSON, is written on one line."""
    is_short = depth > 1 and len(row) <= LONGEST_ROW
    return depth > 0 and (is_short or not _holds_objects(node))


def _holds_objects(node: dict[str, Any] | list[Any]) -> bool:
    parts = node.values() if isinstance(node, dict) else node
    lists = [part for part in parts if isinstance(part, list)]
    return any(isinstance(part, dict) for part in parts) or any(map(_holds_objects, lists))


def _relative(word: str) -> str:
    """Shorten absolute paths, so that results name no folder of a machine."""
    root = str(Path(__file__).parent.parent) + os.sep
    word = word.removeprefix(root)
    return Path(word).name if os.path.isabs(word) else word
