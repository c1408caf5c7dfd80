"""Checkpoints of lattice codes, written by the command and served: batches, logits, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.equality import check_lattice, few_conditions
from quire import LLM
from quire.cli.main import run
from quire.core.sampling_params import SamplingParams
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import open_tensors
from quire.models.loader import load_model
from quire.models.shards.rank_model import Shard
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.quantization_plan import QuantizationPlan
from quire.quantizing.layouts.quip import QuipLayout
from quire.quantizing.scheme import create_scheme
from tests.distributed.thread_ranks import on_ranks
from tests.models.conftest import Driver
from tests.quantizing.stored_values import FEW, files_of, quantized_names

Make = Callable[..., Path]


@pytest.fixture(scope="module", params=[2, 4])
def lattice(request: pytest.FixtureRequest, checkpoint: Make, quantized: Make) -> Path:
    """A small model of lattice codes, of 2 and of 4 bits; widths with odd parts."""
    source = checkpoint("tiny-llama", intermediate_size=176)
    return quantized(source, "--method", "quip", "--bits", str(request.param), *FEW)


def test_all_matrices_of_layers_are_codes(lattice: Path) -> None:
    settings = json.loads((lattice / "config.json").read_text())["quantization_config"]
    assert settings["quant_method"] == "quip"
    assert len(quantized_names(lattice)) == 3 * 7
    tensors = open_tensors(lattice, read_model_config(lattice))
    made = tensors.tensor("model.layers.0.mlp.down_proj.weight")
    assert isinstance(made, LatticeMatrix) and len(made.input_matrix) == 11


def test_a_request_has_its_tokens_whatever_shares_its_batch(lattice: Path, device: str) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    outcomes = check_lattice(lattice, few_conditions(), device=device)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


def test_ranks_keep_rotated_matrices_whole_and_have_the_bits_of_one(lattice: Path) -> None:
    backend, prompt = create_backend("cpu", threads=1), [np.arange(24) * 7 % 32]
    want = Driver(lattice, backend).step(prompt)
    got = on_ranks(2, lambda own: Driver(lattice, backend, shard=Shard(own)).step(prompt))
    np.testing.assert_array_equal(got[0], want)


def test_logits_are_the_dequantized_models(lattice: Path) -> None:
    """Exact activations: float32's error. Rounded ones: that of 8 bits."""
    pytest.importorskip("torch")
    prompt = [np.arange(24) * 7 % 32]

    def logits(device: str, exact: bool) -> np.ndarray:
        backend = create_backend(device, threads=1)
        plan = QuantizationPlan(exact_activations=exact)
        return Driver(lattice, backend, dtype="float32", plan=plan).step(prompt)

    want = logits("reference", True)
    size = np.sqrt(np.mean(want**2))
    assert np.abs(logits("cpu", True) - want).max() <= 2e-4 * size
    assert np.sqrt(np.mean((logits("cpu", False) - want) ** 2)) <= 0.03 * size


def test_memory_is_known_before_loading(lattice: Path) -> None:
    config = read_model_config(lattice)
    loaded = load_model(lattice, create_backend("cpu", threads=1), max_model_len=64)
    expected = expected_weight_bytes(lattice, config, config.dtype, QuantizationPlan(), 64)
    assert loaded.weight_bytes == expected


def test_packed_weights_are_mapped_at_the_next_start(
    lattice: Path, small: dict[str, Any], tmp_path: Path
) -> None:
    def tokens() -> list[int]:
        llm = LLM(str(lattice), packed_weights_cache=str(tmp_path), **small)
        params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        (output,) = llm.generate(["a text"], params)
        llm.shutdown()
        return list(output.outputs[0].token_ids)

    first = tokens()
    (file,) = tmp_path.glob("*.packed")
    before = file.stat().st_mtime_ns
    assert tokens() == first
    assert file.stat().st_mtime_ns == before


def test_two_threads_change_no_byte(checkpoint: Make, quantized: Make) -> None:
    options = ("--method", "quip", *FEW)
    one, two = (
        files_of(quantized(checkpoint(), *options, "--threads", count)) for count in ("1", "2")
    )
    assert one == two


def test_what_cannot_be_rotated_stays_floats() -> None:
    scheme = create_scheme("quip", {})
    shapes = {"good": (256, 704), "narrow": (256, 100), "odd": (257, 64), "prime": (64, 8 * 257)}
    fitted, notices = QuipLayout().fit(dict.fromkeys(shapes, scheme), shapes)
    assert [*fitted] == ["good"]
    assert "packs rows in multiples of 8: narrow" in notices[0]
    assert "power of two times at most 255: odd, prime" in notices[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bits", "3"), "--bits must be one of 2, 4 with --method quip; got 3"),
        (("--group-size", "64"), "--group-size must come with --method"),
        (("--format", "gptq"), "--format gptq cannot store --method quip"),
    ],
)
def test_settings_that_it_does_not_take_are_refused(
    checkpoint: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    out = tmp_path / "out"
    assert run(["quantize", str(checkpoint()), str(out), "--method", "quip", *options]) != 0
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_recipe_of_other_bits_is_refused(
    checkpoint: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[rule]]\nmatch = "*.down_proj"\nbits = 4\n')
    command = ["quantize", str(checkpoint()), str(tmp_path / "out"), "--method", "quip"]
    assert run([*command, "--recipe", str(recipe)]) != 0
    assert "one code book; got a recipe of 2 and 4 bits" in capsys.readouterr().err


def test_experts_stay_floats_and_the_rest_is_served(
    checkpoint: Make, quantized: Make, small: dict[str, Any]
) -> None:
    out = quantized(checkpoint("tiny-mixtral"), "--method", "quip", *FEW)
    assert len(quantized_names(out)) == 3 * 4
    llm = LLM(str(out), **small)
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    (output,) = llm.generate(["a text"], params)
    llm.shutdown()
    assert len(output.outputs[0].token_ids) == 4
