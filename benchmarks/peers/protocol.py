"""How the comparison talks to an engine: a process, one JSON line in, one out.

The worker gets its set-up as a JSON argument: ``path``, ``threads``, ``context``, ``max_seqs``, and
answers ``{"ready": true}``. Then, per line:

- ``{"kind": "prefill", "tokens": 512}`` -> seconds of one prompt, from nothing to its first logits.
- ``{"kind": "decode", "batch": 8, "depth": 32, "steps": 16}`` -> seconds of each of ``steps`` steps
  in which ``batch`` sequences, each ``depth`` tokens long at the start, get one token more.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Setup:
    """What a worker loads."""

    path: str
    threads: int
    context: int
    max_seqs: int


class Worker:
    """An engine in a process of its own; only one of them works at a time."""

    def __init__(self, python: str, script: list[str], setup: Setup) -> None:
        self.process = subprocess.Popen(
            [python, *script, json.dumps(vars(setup))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._read()

    def ask(self, **command: Any) -> Any:
        """Send one command and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"[compare] the worker ended with status {self.process.wait()}.")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
