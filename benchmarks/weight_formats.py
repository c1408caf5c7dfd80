"""``quire bench quant`` on checkpoints made here, with a result file for each.

    python -m benchmarks.weight_formats tiny [FOLDER]
    python -m benchmarks.weight_formats layers [FOLDER]

``tiny`` is quire-tiny rounded at load, by ``quire quantize`` and as GGUF files: quality, and speed
in the caches.
``layers`` is four layers of Llama 3.2 1B's shape with random weights, which no cache holds: speed.
Checkpoints are made in FOLDER, and kept there if it is given.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from benchmarks import results
from quire.cli.main import cli
from quire.core.model.quantization_names import QUANTIZATIONS
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.random_gguf import random_gguf

#: Left out of the names of files.
ROOT = Path(__file__).parents[1]
#: Groups of 32: no larger one divides quire-tiny's 704 inputs.
QUANTIZED = {
    **{
        f"{method}-{bits}": ("--method", method, "--bits", str(bits), "--group-size", "32")
        for method, bits in (
            ("rtn", 4),
            ("gptq", 4),
            ("awq", 4),
            ("rtn", 3),
            ("gptq", 3),
            ("rtn", 2),
            ("gptq", 2),
        )
    },
    **{
        method: ("--method", method)
        for method in ("fp8", "nvfp4", "mxfp4", "nf4", "hqq", "smoothquant", "llm-int8")
    },
    "quip-2": ("--method", "quip"),
    "quip-4": ("--method", "quip", "--bits", "4"),
    **{
        f"{method}-{bits}{kind}": ("--method", method, "--bits", str(bits), *flags)
        for bits in (4, 3)
        for method, kind, flags in (
            ("kmeans", "", ()),
            ("squeezellm", "", ()),
            ("squeezellm", "-sparse", ("--sparse", "0.0045")),
        )
    },
}
#: Types of GGUF files, of a few bits with an importance of inputs.
GGUF = ("q8_0", "q4_k_m", "q4_0", "iq4_xs", "q3_k_m", "iq3_s", "q2_k", "iq2_xs", "iq1_m")
#: Random weights need no calibration: speed alone is asked for.
UNCALIBRATED = (
    "rtn-4",
    "rtn-3",
    "fp8",
    "nvfp4",
    "mxfp4",
    "nf4",
    "hqq",
    "llm-int8",
    "kmeans-4",
    "kmeans-3",
)
LAYERS = "llama-1b-4-layers"
CONFIG = PRESETS["llama-3.2-1b"] | {"num_hidden_layers": 4, "vocab_size": 2048}
#: Types of GGUF whose blocks may be random.
RANDOM = ("q4_0", "iq4_xs", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xxs", "tq2_0", "iq1_m", "iq1_s")


def quantize_tiny(folder: Path) -> list[str]:
    """Return quire-tiny and what is made of it, as GGUF files too; what is there is taken."""
    made = [_quantized("quire-tiny", folder / name) for name in QUANTIZED]
    matrix = folder / "imatrix.gguf"
    if not matrix.exists():
        _run("imatrix", "quire-tiny", str(matrix))
    for name in GGUF:
        out = folder / f"{name}.gguf"
        if not out.exists():
            _run("convert", "quire-tiny", str(out), "--type", name, "--imatrix", str(matrix))
        made.append(str(out))
    return ["quire-tiny", *made]


def write_layers(folder: Path) -> list[str]:
    """Return a checkpoint of random weights and what is made of it; what is there is taken."""
    whole = folder / LAYERS
    if not (whole / "tokenizer_config.json").exists():
        random_checkpoint(whole, CONFIG, dtype="bfloat16")
    made = [_quantized(str(whole), whole / name) for name in UNCALIBRATED]
    made.append(_quantized(str(whole), whole / "quip-2", "--samples", "2", "--sample-length", "64"))
    for name in RANDOM:
        out = whole / f"{name}.gguf"
        if not out.exists():
            random_gguf(out, name.upper(), config=CONFIG)
        made.append(str(out))
    return [str(whole), *made]


def _quantized(source: str, out: Path, *more: str) -> str:
    """Return what ``quire quantize`` makes of a model; what is there is taken."""
    if not (out / "config.json").exists():
        _run("quantize", source, str(out), *QUANTIZED[out.name], *more)
    return str(out)


#: What is compared, with the flags of ``quire bench quant``.
CASES = {
    "tiny": ("quire-tiny", quantize_tiny, ("--rounds", "15", "--seconds", "0.1")),
    "layers": (
        LAYERS,
        write_layers,
        (
            "--no-quality", "--rounds", "21", "--seconds", "0.1",
            "--prompt-len", "32", "--output-len", "8",
        ),
    ),
}  # fmt: skip


def measure(case: str, folder: Path) -> Path:
    """Make the checkpoints, compare them and write the result file."""
    name, make, flags = CASES[case]
    models = make(folder)
    report = folder / f"{name}.json"
    rounded = ("--formats", ",".join(QUANTIZATIONS))
    _run("bench", "quant", *models, *rounded, *flags, "--json", str(report))
    document = json.loads(report.read_text().replace(f"{ROOT}/", ""))
    rows = [_without_rounds(row) for row in document.pop("formats")]
    return results.write(results.per_processor(f"quant_{name}"), rows, flags=flags, **document)


def _without_rounds(part: Any) -> Any:
    """Return a part of what was measured with the summary of its rounds in place of them."""
    if not isinstance(part, dict):
        return part
    rounds = part.get("rounds")
    summary = {} if rounds is None else results.summary(rounds)
    return summary | {key: _without_rounds(of) for key, of in part.items() if key != "rounds"}


def _run(*arguments: str) -> None:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    if done.exit_code:
        raise SystemExit(done.output)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(measure(sys.argv[1], Path(sys.argv[2])))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            print(measure(sys.argv[1], Path(temporary)))
