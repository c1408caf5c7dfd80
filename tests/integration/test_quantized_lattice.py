"""Checkpoints that other programs quantized: the equality lattice, one folder for each form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from string import printable

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import WordLevel

from benchmarks.equality import check_lattice
from quire.cli.main import run
from quire.kernels.registry import create_backend
from quire.quantization.quantization_plan import QuantizationPlan
from tests.integration.conftest import lattice
from tests.models.conftest import Driver

FIXTURES = Path(__file__).parents[1] / "fixtures" / "quantized"
#: Each has a form of its own: zeros, orders, books, scales and rules for inputs that the others
#: have not.
FOLDERS = [
    "gptq-w4-g32-act-order",
    "gptq-w4-g32-asymmetric",
    "gptq-w3-g32",
    "bnb-nf4",
    "bnb-int8",
    "ct-w8a8-int8",
    "ct-fp8-dynamic",
    "ct-fp8-static",
    "ct-fp8-block",
    "ct-nvfp4",
    "ct-mxfp4",
    "ct-mxfp8",
    "squeezellm-w3",
    "squeezellm-w4-sparse",
]


#: Of integers, as a fixture might have them.
E4M3_INPUTS = {
    "num_bits": 8,
    "type": "float",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}


# What is multiplied with nested scales is what is with numbers: tests/kernels.
@pytest.mark.parametrize("name", [*FOLDERS, "bnb-nf4-nested"])
def test_the_lattice(name: str, device: str, tmp_path: Path) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    keep_lattice(shutil.copytree(FIXTURES / name, tmp_path / name), device)


def test_the_lattice_of_integers_with_e4m3_inputs(device: str, tmp_path: Path) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    folder = shutil.copytree(FIXTURES / "ct-w4a16-g32", tmp_path / "w4a8")
    config = json.loads((folder / "config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]
    group["input_activations"] = E4M3_INPUTS
    (folder / "config.json").write_text(json.dumps(config))
    keep_lattice(folder, device)


def test_the_lattice_of_a_quantized_head(
    checkpoint: Callable[..., Path], device: str, tmp_path: Path
) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    options = ("--method", "rtn", "--group-size", "32", "--quantize-head", "--threads", "1")
    folder = tmp_path / "head"
    assert run(["quantize", str(checkpoint("tiny-qwen2")), str(folder), *options]) == 0
    outcomes = check_lattice(folder, lattice(), device=device)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


def keep_lattice(folder: Path, device: str) -> None:
    tokens = {letter: token for token, letter in enumerate(printable[:32])}
    tokenizer = Tokenizer(WordLevel(tokens, unk_token="0"))
    tokenizer.decoder = ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    turn = FOLDERS.index(folder.name) if folder.name in FOLDERS else 0
    outcomes = check_lattice(folder, lattice(turn), device=device)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_the_dequantized_models(name: str) -> None:
    """Exact activations: float32's error. Rounded ones: see ``test_gguf_lattice``.

    Where the checkpoint says how they are rounded, the reference does so, too.
    """
    pytest.importorskip("torch")
    prompt = [np.arange(24) * 7 % 32]

    def logits(device: str, exact: bool) -> np.ndarray:
        backend = create_backend(device, threads=1)
        plan = QuantizationPlan(exact_activations=exact)
        return Driver(FIXTURES / name, backend, dtype="float32", plan=plan).step(prompt)

    want = logits("reference", True)
    size = np.sqrt(np.mean(want**2))
    assert np.abs(logits("cpu", True) - want).max() <= 2e-4 * size
    rounded = logits("reference", False)
    assert np.sqrt(np.mean((logits("cpu", False) - rounded) ** 2)) <= 0.03 * size
