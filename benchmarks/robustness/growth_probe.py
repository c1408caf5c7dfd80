"""Inside a server's processes, for load tools alone: what a process has in use, when asked.

A ``sitecustomize`` on ``PYTHONPATH`` calls :func:`start`; :func:`look` asks from outside through
files in a folder. Objects are those of Python's allocator, after a collection: one that is kept for
each request shows exactly. The heap is the C library's, the resident set what the system counts.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

from quire.system import heap
from quire.system.process_usage import resident_bytes

FOLDER = "QUIRE_GROWTH_FOLDER"
POLL_SECONDS = 0.05
#: Of one process: ``objects``, ``heap_kib``, ``resident_kib``.
Look = dict[str, float]


def environment(folder: Path, site: Path) -> dict[str, str]:
    """Return what processes need that run ``sitecustomize.py`` of the folder ``site``."""
    root = Path(__file__).parents[2]
    # One arena: otherwise what is free is spread over as many as there are threads.
    return {FOLDER: str(folder), "PYTHONPATH": f"{site}:{root}", "MALLOC_ARENA_MAX": "1"}


def look(folder: Path, processes: dict[str, int], number: int) -> dict[str, Look]:
    """Ask processes, given by their ids, and wait until all have answered.

    Raises:
        AssertionError: One does not answer within a minute.
    """
    (folder / "number").write_text(str(number))
    answers = {name: folder / f"{process}-{number}.json" for name, process in processes.items()}
    end = time.monotonic() + 60
    while not all(path.exists() for path in answers.values()):
        assert time.monotonic() < end, f"no answer: {answers}"
        time.sleep(POLL_SECONDS)
    return {name: json.loads(path.read_text()) for name, path in answers.items()}


def start() -> None:
    """Answer in a thread of this process, where the environment names a folder."""
    if FOLDER in os.environ:
        threading.Thread(target=_answer, args=(Path(os.environ[FOLDER]),), daemon=True).start()


def _answer(folder: Path) -> None:
    answered = 0
    while True:
        time.sleep(POLL_SECONDS)
        try:
            number = int((folder / "number").read_text() or 0)
        except FileNotFoundError:
            continue
        if number > answered:
            answered = number
            path = folder / f"{os.getpid()}-{number}"
            path.write_text(json.dumps(_look()))
            path.rename(path.with_suffix(".json"))


def _look() -> Look:
    gc.collect()
    objects = sys.getallocatedblocks()
    ctypes.CDLL(None).malloc_trim(0)
    used = heap.heap_bytes()
    return {
        "objects": objects,
        "heap_kib": used[0] / 1024 if used else 0.0,
        "resident_kib": resident_bytes() / 1024,
    }
