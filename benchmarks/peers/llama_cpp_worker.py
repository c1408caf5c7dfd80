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
from typing import Any

from llama_cpp import llama_cpp as ll


class Peer:
    """One model and one context with room for ``max_seqs`` sequences of ``context`` tokens."""

    def __init__(self, path: str, threads: int, context: int, max_seqs: int) -> None:
        ll.llama_backend_init()
        self.model = ll.llama_load_model_from_file(path.encode(), ll.llama_model_default_params())
        params = ll.llama_context_default_params()
        params.n_ctx = context * max_seqs
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = max_seqs
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self.context = ll.llama_init_from_model(self.model, params)
        self.batch = ll.llama_batch_init(512, 0, max_seqs)

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
        ctypes.cast(
            ll.llama_get_logits_ith(self.context, len(rows) - 1), ctypes.POINTER(ctypes.c_float)
        )[0]

    def clear(self) -> None:
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)

    def prefill(self, tokens: int) -> float:
        """Return the seconds a prompt of ``tokens`` tokens takes."""
        self.clear()
        start = time.perf_counter()
        for first in range(0, tokens, 512):
            last = min(tokens, first + 512)
            self.decode([(p % 1000 + 5, p, 0) for p in range(first, last)], False)
        return time.perf_counter() - start

    def decode_steps(self, batch: int, depth: int, steps: int) -> list[float]:
        """Return the seconds of each of ``steps`` steps of ``batch`` sequences at ``depth``."""
        self.clear()
        for sequence in range(batch):
            for first in range(0, depth, 512):
                last = min(depth, first + 512)
                self.decode([(p % 1000 + 5, p, sequence) for p in range(first, last)], False)
        seconds = []
        for step in range(steps):
            rows = [(step + 7 + s, depth + step, s) for s in range(batch)]
            start = time.perf_counter()
            self.decode(rows, True)
            seconds.append(time.perf_counter() - start)
        return seconds


def main() -> None:
    # llama.cpp prints to the C stdout and stderr; answers go to a private copy of stdout.
    answers = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    setup = json.loads(sys.argv[1])
    peer = Peer(setup["path"], setup["threads"], setup["context"], setup["max_seqs"])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        kind = command.pop("kind")
        value = peer.prefill(**command) if kind == "prefill" else peer.decode_steps(**command)
        print(json.dumps(value), file=answers, flush=True)


if __name__ == "__main__":
    main()
