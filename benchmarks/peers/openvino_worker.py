"""Runs OpenVINO on commands from standard input; one JSON line in, one out.

Runs in the peer's environment (package ``openvino``) on a folder that ``optimum-cli export
openvino`` wrote. Commands and their meaning are those of ``benchmarks/peers/protocol.py``. Times
cover one inference and its logits, no sampling: the favourable reading for the peer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.properties as properties
import openvino.properties.hint as hints


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peer:
    """A compiled model whose key-value cache is its state."""

    def __init__(self, setup: dict[str, Any]) -> None:
        settings = {
            hints.performance_mode: hints.PerformanceMode.LATENCY,
            properties.inference_num_threads: setup["threads"],
        }
        path = Path(setup["path"]) / "openvino_model.xml"
        self.request = ov.Core().compile_model(path, "CPU", settings).create_infer_request()

    def run(self, ids: np.ndarray[Any, Any], depth: int) -> float:
        """Run tokens [sequences, tokens] that follow ``depth`` others; return the seconds."""
        sequences, tokens = ids.shape
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones((sequences, depth + tokens), np.int64),
            "position_ids": np.tile(np.arange(depth, depth + tokens), (sequences, 1)),
            "beam_idx": np.arange(sequences, dtype=np.int32),
        }
        start = time.perf_counter()
        self.request.infer(inputs, share_inputs=True)
        float(self.request.get_tensor("logits").data[-1, -1, 0])
        return time.perf_counter() - start

    def fill(self, batch: int, depth: int) -> float:
        """Bring ``batch`` sequences from nothing to ``depth`` tokens; return the seconds."""
        self.request.reset_state()
        return self.run(np.tile(np.arange(depth) % 200 + 5, (batch, 1)), 0)

    def prefill(self, tokens: int) -> float:
        return self.fill(1, tokens)

    def decode(self, batch: int, depth: int, steps: int) -> dict[str, Any]:
        prefill = self.fill(batch, depth)
        rows = np.arange(batch)[:, None] + 7
        return {"prefill": prefill, "steps": [self.run(rows + s, depth + s) for s in range(steps)]}


def main() -> None:
    start = time.perf_counter()
    peer = Peer(json.loads(sys.argv[1]))
    load = time.perf_counter() - start
    peer.prefill(1)
    ready = time.perf_counter() - start
    found = {"load_seconds": load, "ready_seconds": ready, "rss_bytes": rss_bytes()}
    print(json.dumps(found | {"paths": ov.get_version()}), flush=True)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        value = getattr(peer, command.pop("kind"))(**command)
        print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
