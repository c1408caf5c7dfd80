"""How the comparison talks to an engine: a process, one JSON line in, one out.

The worker gets its set-up as a JSON argument, a :class:`Setup`, and answers with a JSON object:
``load_seconds`` (the file opened until the engine takes requests) and ``rss_bytes`` and
``ready_seconds`` (the same until the first token is there; then all weights have been touched).
llama.cpp's says also ``paths``: the instructions that it was built for.
Then, per line:

- ``{"kind": "prefill", "tokens": 512}`` -> seconds of one prompt, from nothing to its first logits.
- ``{"kind": "decode", "batch": 8, "depth": 32, "steps": 16}`` -> ``{"prefill": seconds to bring all
  sequences to ``depth`` tokens, "steps": [seconds of each step in which every one gets a token]}``.
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
    """What a worker loads.

    Attributes:
        path: GGUF file, or a checkpoint's folder.
        threads: Compute threads.
        context: Tokens that a single sequence may have.
        batches: Most sequences at once.
        batch_context: Tokens that each of them may have; 0: only single sequences.
        packed_weights_cache: Folder where Quire keeps packed weights.
        quantization_overrides: Matrices that Quire holds otherwise than the file.
    """

    path: str
    threads: int
    context: int
    batches: int = 1
    batch_context: int = 0
    packed_weights_cache: str | None = None
    quantization_overrides: str | None = None


class Worker:
    """An engine in a process of its own; only one of them works at a time.

    Attributes:
        ready: The worker's first answer, but for:
        paths: What the engine says of the instructions it uses; Quire nothing.
    """

    def __init__(self, python: str, script: list[str], setup: Setup) -> None:
        self.process = subprocess.Popen(
            [python, *script, json.dumps(vars(setup))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.ready: dict[str, float] = self._read()
        self.paths = str(self.ready.pop("paths", ""))

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
