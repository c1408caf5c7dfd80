"""Coverage-guided fuzz of one reader: ``python -m tools.check_native.fuzz READER SECONDS``.

atheris drives it: libFuzzer over the bytecode of ``quire`` and of the Python that parses for it. It
begins from the committed inputs, always with the same seed. An input that a reader neither reads
nor refuses ends it with status 1 and is kept in ``build/fuzz/``: it goes to
``tests/robustness/inputs`` with a name of its own when the defect is mended.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import atheris

# An editable install finds this checkout by a loader of its own, which hides the code from atheris.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]

with atheris.instrument_imports(include=["quire", "uvicorn.protocols", "wsproto", "h11"]):
    from tools.check_native.readers import Readers

ROOT = Path(__file__).parents[2]
INPUTS = ROOT / "tests/robustness/inputs"
FOUND = ROOT / "build/fuzz"
#: One input: seconds, MiB of the process, bytes.
LIMITS = {"timeout": 20, "rss_limit_mb": 2048, "max_len": 16384}


def main() -> None:
    name, seconds = sys.argv[1:]
    logging.disable(logging.WARNING)
    FOUND.mkdir(parents=True, exist_ok=True)
    flags = {"seed": 1, "max_total_time": seconds, "artifact_prefix": f"{FOUND}/{name}-", **LIMITS}
    dictionary = INPUTS / f"{name}.dict"
    if dictionary.exists():
        flags["dict"] = dictionary
    # Both kept in memory: a reader gets its input as a file, many hundred times a second.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as files, tempfile.TemporaryDirectory() as corpus:
        arguments = [f"-{flag}={value}" for flag, value in flags.items()]
        read = Readers(Path(files), INPUTS / "whole_tokenizer").by_name[name]
        atheris.Setup([sys.argv[0], *arguments, corpus, str(INPUTS / name)], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
