"""Write which types llama.cpp's quantizer gives quire-tiny's tensors, for the tests of mixes.

    python -m tools.quantized_fixtures.make_gguf_mixes LLAMA_QUANTIZE

``LLAMA_QUANTIZE`` is llama.cpp's program ``llama-quantize``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from quire.models.gguf_file import GgufFile

MIXES = (
    "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL",
    "IQ4_XS",
)  # fmt: skip
OUT = Path(__file__).parents[2] / "tests/models/gguf_mixes.json"


def main() -> None:
    program = sys.argv[1]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "f16.gguf", Path(folder) / "mix.gguf"
        quire = [sys.executable, "-m", "quire.cli.main", "convert", "quire-tiny", str(source)]
        subprocess.run(quire, check=True)
        for mix in MIXES:
            subprocess.run([program, source, target, mix], check=True, capture_output=True)
            tensors = GgufFile(target).tensors
            found[mix] = {name: tensor.layout.name for name, tensor in tensors.items()}
    OUT.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
