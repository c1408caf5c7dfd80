"""``quire bench quant`` on checkpoints made here, with a result file for each.

    python -m benchmarks.weight_formats tiny [FOLDER]
    python -m benchmarks.weight_formats layers [FOLDER]

``tiny`` is quire-tiny rounded at load and by ``quire quantize``: quality, and speed in the caches.
``layers`` is four layers of Llama 3.2 1B's shape with random weights, which no cache holds: speed.
Checkpoints are made in FOLDER, and kept there if it is given.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from benchmarks import results
from quire.cli.main import cli
from quire.core.quantization_names import QUANTIZATIONS

#: Left out of the names of files.
ROOT = Path(__file__).parents[1]
#: Groups of 32: no larger one divides quire-tiny's 704 inputs.
QUANTIZED = {
    **{
        f"{method}-{bits}": ("--method", method, "--bits", str(bits), "--group-size", "32")
        for method, bits in (("rtn", 4), ("gptq", 4), ("awq", 4), ("rtn", 3), ("gptq", 3))
    },
    **{
        method: ("--method", method)
        for method in ("fp8", "nvfp4", "mxfp4", "nf4", "hqq", "smoothquant", "llm-int8", "quip")
    },
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
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SHAPES = {
    "self_attn.q_proj": (2048, 2048),
    "self_attn.k_proj": (512, 2048),
    "self_attn.v_proj": (512, 2048),
    "self_attn.o_proj": (2048, 2048),
    "mlp.gate_proj": (8192, 2048),
    "mlp.up_proj": (8192, 2048),
    "mlp.down_proj": (2048, 8192),
}


def quantize_tiny(folder: Path) -> list[str]:
    """Return quire-tiny and what ``quire quantize`` makes of it; what is there is taken."""
    return ["quire-tiny", *(_quantized("quire-tiny", folder / name) for name in QUANTIZED)]


def write_layers(folder: Path) -> list[str]:
    """Write a checkpoint of random weights, in bfloat16 by cutting float32 short."""
    generator = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    ones = (np.ones(2048, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    tensors = {"model.embed_tokens.weight": floats(2048, 2048), "model.norm.weight": ones}
    for layer in range(CONFIG["num_hidden_layers"]):
        start = f"model.layers.{layer}"
        tensors |= {f"{start}.{name}.weight": floats(*shape) for name, shape in SHAPES.items()}
        tensors |= {
            f"{start}.{name}.weight": ones
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    header, end = {}, 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [end, end + values.nbytes],
        }
        end += values.nbytes
    text = json.dumps(header).encode()
    (folder / LAYERS).mkdir(parents=True, exist_ok=True)
    (folder / LAYERS / "config.json").write_text(json.dumps(CONFIG))
    with open(folder / LAYERS / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(values.tobytes())
    whole = str(folder / LAYERS)
    return [whole, *(_quantized(whole, folder / LAYERS / name) for name in UNCALIBRATED)]


def _quantized(source: str, out: Path) -> str:
    """Return what ``quire quantize`` makes of a model; what is there is taken."""
    if not (out / "config.json").exists():
        _run("quantize", source, str(out), *QUANTIZED[out.name])
    return str(out)


#: What is compared, with the flags of ``quire bench quant``.
CASES = {
    "tiny": ("quire-tiny", quantize_tiny, ("--rounds", "15", "--seconds", "0.1")),
    "layers": (
        LAYERS,
        write_layers,
        (
            "--no-quality", "--rounds", "7", "--seconds", "0.1",
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
    return results.write(
        results.per_processor(f"quant_{name}"), document.pop("formats"), flags=flags, **document
    )


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
