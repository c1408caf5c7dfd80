"""Tokens and log-probabilities of the embedded model: written on one machine, compared on another.

``python -m tools.check_arm.generate --write FILE`` runs the requests of ``benchmarks/equality.py``
on this machine one by one; without ``--write``, together in small chunks on two threads, and fails
where one bit is not what the file has. Names of models limit it to those.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import sys
from pathlib import Path
from typing import Any

from benchmarks.equality import Condition, run
from quire.kernels.cpu.native import native
from quire.store.hub import resolve_model

#: Weights of 16 bits, those of 8 and 4, and a code book; caches of 16, 8 and 4 bits.
MODELS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "int4": {"quantization": "int4", "kv_cache_dtype": "fp8"},
    "int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "nf4": {
        "quantization": "nf4",
        "quantization_group_size": 64,
        "kv_cache_dtype": "int4",
    },
}
TOGETHER = Condition(batched=True, chunked=True, two_threads=True)


def main() -> int:
    """Write or compare; 1 when something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("models", nargs="*", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("quire").setLevel(logging.WARNING)
    model, condition = resolve_model("quire-tiny"), Condition() if arguments.write else TOGETHER
    results = {n: run(model, condition, MODELS[n]).results for n in arguments.models or MODELS}
    if arguments.write:
        arguments.file.write_bytes(pickle.dumps(results))
        return 0
    wanted = pickle.loads(arguments.file.read_bytes())
    differing = [
        f"{name}, request {number}: {one} instead of {other}"
        for name, found in results.items()
        for number, (one, other) in enumerate(zip(found, wanted[name], strict=True))
        if one != other
    ]
    print(*differing, sep="\n", end="\n" if differing else "")
    print(f"{native.isa()}: {len(results)} models, {len(differing)} requests differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
