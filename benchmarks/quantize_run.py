"""One whole run of ``quire quantize``: what it takes of time, cores and memory, with a result file.

    python -m benchmarks.quantize_run CHECKPOINT [FLAGS OF quire quantize]

CHECKPOINT is what ``python -m tools.random_checkpoint llama-3.2-1b CHECKPOINT --dtype bfloat16``
writes: true shapes with random weights, whose time is that of any weights.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import results

DEFAULT = ("--method", "gptq", "--samples", "128", "--sample-length", "512")


def measure(source: Path, flags: tuple[str, ...]) -> Path:
    """Run ``quire quantize`` in a process of its own and write the result file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "quire", "quantize", str(source), str(out), *flags], check=True
        )
        elapsed = time.perf_counter() - start
        written = sum(file.stat().st_size for file in out.iterdir())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "elapsed_seconds": round(elapsed, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_gib": round(used.ru_maxrss / 2**20, 2),
        "source_gib": round(sum(file.stat().st_size for file in source.iterdir()) / 2**30, 2),
        "written_gib": round(written / 2**30, 2),
    }
    name = flags[flags.index("--method") + 1]
    return results.write(
        results.per_processor(f"quantize_{name}_llama-3.2-1b"), figures, flags=flags
    )


if __name__ == "__main__":
    print(measure(Path(sys.argv[1]), tuple(sys.argv[2:]) or DEFAULT))
