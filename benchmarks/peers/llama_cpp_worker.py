"""Runs llama.cpp on commands from standard input; one JSON line in, one out.

Runs in the peer's environment (package ``llama-cpp-python``). Commands and their meaning are those
of ``benchmarks/peers/protocol.py``. Times cover ``llama_decode`` and fetching the logits, no
sampling: the favourable reading for the peer.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as ll

UBATCH = 512


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Context:
    """Room for ``max_seqs`` sequences of ``context`` tokens each; one sequence's own is separate,
    because llama.cpp's cache is laid out by the number of sequences it may hold."""

    def __init__(self, model: Any, threads: int, context: int, max_seqs: int) -> None:
        params = ll.llama_context_default_params()
        params.n_ctx = context * max_seqs
        params.n_batch = params.n_ubatch = UBATCH
        params.n_seq_max = max_seqs
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self.context = ll.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit("[llama.cpp] no context: out of memory?")
        self.batch = ll.llama_batch_init(UBATCH, 0, max_seqs)

    def decode(self, rows: list[tuple[int, int, int]], logits: bool) -> None:
        """Run rows of (token, position, sequence), keeping all logits or the last row's."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = logits or i == len(rows) - 1
        if ll.llama_decode(self.context, batch) != 0:
            raise SystemExit("[llama.cpp] llama_decode failed")
        row = ll.llama_get_logits_ith(self.context, len(rows) - 1)
        ctypes.cast(row, ctypes.POINTER(ctypes.c_float))[0]

    def fill(self, batch: int, depth: int) -> float:
        """Bring ``batch`` sequences from nothing to ``depth`` tokens and return the seconds."""
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)
        rows = [(p % 1000 + 5, p, s) for s in range(batch) for p in range(depth)]
        start = time.perf_counter()
        for first in range(0, len(rows), UBATCH):
            self.decode(rows[first : first + UBATCH], False)
        return time.perf_counter() - start


class Peer:
    """One model with a context for a single sequence, and one for many when it is needed."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        ll.llama_backend_init()
        params = ll.llama_model_default_params()
        self.model = ll.llama_load_model_from_file(setup["path"].encode(), params)
        if not self.model:
            raise SystemExit(f"[llama.cpp] cannot load {setup['path']}")
        self.single = Context(self.model, setup["threads"], setup["context"], 1)
        self.many: Context | None = None

    def context(self, batch: int) -> Context:
        if batch == 1:
            return self.single
        if self.many is None:
            setup = self.setup
            sizes = (setup["batch_context"], setup["batches"])
            self.many = Context(self.model, setup["threads"], *sizes)
        return self.many

    def prefill(self, tokens: int) -> float:
        return self.single.fill(1, tokens)

    def decode(self, batch: int, depth: int, steps: int) -> dict[str, Any]:
        context = self.context(batch)
        prefill = context.fill(batch, depth)
        seconds = []
        for step in range(steps):
            rows = [(step + 7 + s, depth + step, s) for s in range(batch)]
            start = time.perf_counter()
            context.decode(rows, True)
            seconds.append(time.perf_counter() - start)
        return {"prefill": prefill, "steps": seconds}


def main() -> None:
    # llama.cpp prints to the C stdout and stderr; answers go to a private copy of stdout.
    answers = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    start = time.perf_counter()
    peer = Peer(json.loads(sys.argv[1]))
    load = time.perf_counter() - start
    peer.prefill(1)
    ready = time.perf_counter() - start
    found = {"load_seconds": load, "ready_seconds": ready, "rss_bytes": rss_bytes()}
    paths = {"paths": ll.llama_print_system_info().decode()}
    print(json.dumps(found | paths), file=answers, flush=True)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        value = getattr(peer, command.pop("kind"))(**command)
        print(json.dumps(value), file=answers, flush=True)


if __name__ == "__main__":
    main()
