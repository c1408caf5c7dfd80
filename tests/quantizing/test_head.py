"""An output head that is quantized, too: in which formats, what becomes of a tied one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.checkpoint import Checkpoint
from quire.cli.main import run
from quire.core.errors import ModelLoadError
from quire.kernels.registry import create_backend
from quire.models.loader import load_model
from quire.quantization.producers.gptq import quantize_gptq
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn
from quire.quantization.quantization_plan import QuantizationPlan
from quire.quantizing.resumable_run import Unfinished
from tests.quantizing.stored_values import FEW, files_of, quantized_names, values_of

Quantized = Callable[..., Path]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
KINDS = {
    "gptq": ("--method", "rtn", "--group-size", "32"),
    "gptq of 3 bits with zeros": ("--method", "rtn", "--bits", "3", "--asymmetric"),
    "packed": ("--method", "rtn", "--format", "compressed-tensors", "--group-size", "32"),
    "bytes": (
        "--method",
        "int8",
    ),
    "floats": ("--method", "fp8"),
    "four bits": (
        "--method",
        "nvfp4",
    ),
}


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return settings


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_computes_with_the_values_of_its_head(
    checkpoint: Callable[..., Path], quantized: Quantized, small: dict[str, Any], kind: str
) -> None:
    """The other matrices are those of a run without; a product is that of the head's values."""
    source = checkpoint()
    out = quantized(source, *KINDS[kind], "--quantize-head")
    assert quantized_names(out) == [HEAD, *quantized_names(quantized(source, *KINDS[kind]))]
    values, without = values_of(out), values_of(quantized(source, *KINDS[kind]))
    for name in values.keys() - {HEAD}:
        np.testing.assert_array_equal(values[name], without[name], name)
    floats = without[HEAD]
    assert 0 < np.abs(values[HEAD] - floats).max() < 0.5 * np.abs(floats).max()
    backend = create_backend("cpu", threads=1)
    decoder = load_model(out, backend, plan=QuantizationPlan(exact_activations=True))
    x = np.random.default_rng(0).standard_normal((5, floats.shape[1]), np.float32)
    want = x.astype(np.float64) @ values[HEAD].astype(np.float64).T
    np.testing.assert_allclose(decoder.head(x), want, rtol=0, atol=1e-5 * np.abs(want).max())
    llm = LLM(str(out), **small)
    (output,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, temperature=0.0))
    llm.shutdown()
    assert len(output.outputs[0].token_ids) == 4


def test_readers_are_told(checkpoint: Callable[..., Path], quantized: Quantized) -> None:
    """GPTQ has a field for it; compressed-tensors names a head, or ignores it."""
    for options, is_asked in (((), False), (("--quantize-head",), True)):
        made = settings_of(quantized(checkpoint(), *KINDS["gptq"], *options))
        assert made["quantization_config"]["lm_head"] is is_asked
        made = settings_of(quantized(checkpoint(), *KINDS["packed"], *options))
        group = made["quantization_config"]["config_groups"]["group_0"]
        assert group["targets"] == ["Linear", *(["re:lm_head$"] if is_asked else [])]
        assert made["quantization_config"]["ignore"] == ([] if is_asked else ["lm_head"])
        assert "tie_word_embeddings" not in made


def test_parts_of_a_head_by_a_literal_decoder(
    checkpoint: Callable[..., Path], quantized: Quantized
) -> None:
    """GPTQ's words, a code at a time: eight of a column in each, zeros stored less one."""
    out = quantized(checkpoint(), *KINDS["gptq"], "--quantize-head")
    stored = Checkpoint(out)
    words, zeros, scales, groups = (
        stored.files[name].array(name)
        for name in (f"lm_head.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    )
    values = values_of(out)[HEAD]
    for row, column in [(0, 0), (1, 7), (5, 8), (31, 63), (255, 33)]:
        code = int(words[column // 8, row]) >> 4 * (column % 8) & 15
        group = groups[column]
        zero = (int(zeros[group, row // 8]) >> 4 * (row % 8) & 15) + 1
        assert values[row, column] == np.float32(scales[group, row]) * np.float32(code - zero)


@pytest.mark.parametrize("kind", ["gptq", "packed"])
def test_a_tied_embedding_stays_and_the_head_is_a_copy(
    checkpoint: Callable[..., Path],
    quantized: Quantized,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    source, out = checkpoint("tiny-qwen2"), tmp_path / "out"
    assert settings_of(source)["tie_word_embeddings"]
    options = (*KINDS[kind], "--quantize-head", "--threads", "1")
    assert run(["quantize", str(source), str(out), *options]) == 0
    assert "lm_head is a quantized copy of the embedding" in capsys.readouterr().err
    assert settings_of(out)["tie_word_embeddings"] is False
    before, after = values_of(source), values_of(out)
    np.testing.assert_array_equal(after[EMBEDDING], before[EMBEDDING])
    grid = IntegerGrid(4, 32, symmetric=True, search=False)
    made = quantize_rtn(HEAD, before[EMBEDDING], grid).float32()
    np.testing.assert_array_equal(after[HEAD], made)
    decoder = load_model(out, create_backend("cpu", threads=1))
    assert decoder.head is not decoder.embedding
    assert settings_of(quantized(source, *KINDS[kind]))["tie_word_embeddings"] is True


@pytest.mark.parametrize("options", [(), ("--true-sequential",), ("--statistics",)])
def test_gptq_calibrates_it_on_the_last_states(
    checkpoint: Callable[..., Path], quantized: Quantized, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """What the quantized layers make of the text, normalized; with statistics, the floats."""
    torch = pytest.importorskip("torch")
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    source = checkpoint()
    given = (*options, str(tmp_path / "sums")) if "--statistics" in options else options
    gptq = ("--method", "gptq", "--group-size", "32", *FEW, "--quantize-head", *given)
    found = values_of(quantized(source, *gptq))
    inputs, samples = LinearInputs(source), calibration_samples(source, FEW)
    if "--statistics" not in options:
        for name, values in found.items():
            if ".layers." in name:
                inputs.replace(name, torch.from_numpy(values))
    rows, weight = inputs.of_head(samples), inputs.weight(HEAD)
    made = quantize_gptq(HEAD, weight, rows.T @ rows, IntegerGrid(4, 32)).float32()
    # A weight on the border of two codes may take the other one, and others follow.
    assert (made != found[HEAD]).mean() < 0.02
    rounded = values_of(quantized(source, *KINDS["gptq"], "--quantize-head"))[HEAD]
    assert (rounded != found[HEAD]).mean() > 0.1


def test_a_run_that_stops_at_it_goes_on_there(
    checkpoint: Callable[..., Path], quantized: Quantized, tmp_path: Path
) -> None:
    source, out = checkpoint("tiny-qwen2"), tmp_path / "out"
    options = ("--method", "gptq", "--group-size", "32", *FEW, "--quantize-head")
    arguments = ["quantize", str(source), str(out), "--threads", "1", *options]
    as_ever, written = Unfinished.write, []

    def stop(unfinished: Unfinished, layer: int, *given: Any) -> None:
        written.append(layer)
        if layer == 3 and written.count(3) == 1:
            raise KeyboardInterrupt
        as_ever(unfinished, layer, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unfinished, "write", stop)
        assert run(arguments) == 130
        assert run(arguments) == 0
    assert written == [0, 1, 2, 3, 3]
    assert files_of(out) == files_of(quantized(source, *options))


def test_a_tied_config_with_a_head_of_other_values_is_refused(
    checkpoint: Callable[..., Path], quantized: Quantized, tmp_path: Path
) -> None:
    folder = shutil.copytree(
        quantized(checkpoint("tiny-qwen2"), *KINDS["gptq"], "--quantize-head"), tmp_path / "tied"
    )
    settings = settings_of(folder) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match="Set tie_word_embeddings to false to use both"):
        load_model(folder, create_backend("cpu", threads=1))


def test_a_method_that_scales_layers_rounds_it(
    checkpoint: Callable[..., Path], quantized: Quantized, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--method", "awq", "--format", "gptq", "--group-size", "32", "--quantize-head")
    found = values_of(quantized(checkpoint(), *options, *FEW))
    assert "lm_head is made by rtn: awq scales matrices of layers alone" in capsys.readouterr().err
    grid = IntegerGrid(4, 32, symmetric=True, search=False)
    before = values_of(checkpoint())[HEAD]
    np.testing.assert_array_equal(found[HEAD], quantize_rtn(HEAD, before, grid).float32())


def test_a_rule_that_names_it_asks_for_it(
    checkpoint: Callable[..., Path], quantized: Quantized, tmp_path: Path
) -> None:
    """A pattern that happens to fit it does not."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[rule]]\nmatch = "lm_head"\nbits = 8\n')
    out = quantized(checkpoint(), *KINDS["gptq"], "--recipe", str(recipe))
    settings = settings_of(out)["quantization_config"]
    assert settings["lm_head"] and settings["bits"] == 4
    assert settings["dynamic"]["+:^lm_head$"]["bits"] == 8
    before = values_of(checkpoint())[HEAD]
    grid = IntegerGrid(8, 32, symmetric=True, search=False)
    want = quantize_rtn(HEAD, before, grid).float32()
    np.testing.assert_array_equal(values_of(out)[HEAD], want)
    every = tmp_path / "every.toml"
    every.write_text('[[rule]]\nmatch = "*"\nbits = 8\n')
    assert HEAD not in quantized_names(
        quantized(checkpoint(), *KINDS["gptq"], "--recipe", str(every))
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--method", "rtn", "--format", "awq"),
        ("--method", "fp8", "--scales", "block", "--format", "fp8"),
        ("--method", "nf4"),
        ("--method", "hqq"),
        ("--method", "kmeans"),
    ],
    ids=lambda options: options[-1],
)
def test_formats_whose_readers_take_floats_refuse_it(
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    out = tmp_path / "out"
    assert run(["quantize", str(checkpoint()), str(out), *options, "--quantize-head"]) == 1
    assert "must come with --format gptq or compressed-tensors" in capsys.readouterr().err
    assert not out.exists()


def test_a_tied_matrix_under_the_head_s_name_is_refused(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import load_file, save_file

    source = tmp_path / "source"
    source.mkdir()
    for path in checkpoint("tiny-qwen2").iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    tensors = load_file(source / "model.safetensors")
    tensors[HEAD] = tensors.pop(EMBEDDING)
    save_file(tensors, source / "model.safetensors")
    options = (*KINDS["gptq"], "--quantize-head")
    assert run(["quantize", str(source), str(tmp_path / "out"), *options]) == 1
    assert "got one that is stored as lm_head.weight alone" in capsys.readouterr().err


def test_a_head_that_does_not_fit_stays_floats(
    checkpoint: Callable[..., Path], quantized: Quantized, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPTQ packs rows in multiples of 32; a vocabulary of another size is told, and stays tied."""
    source = checkpoint("tiny-qwen2", vocab_size=321)
    out = quantized(source, *KINDS["gptq"], "--quantize-head")
    assert "1 matrix left as floats, since gptq packs" in capsys.readouterr().err
    settings = settings_of(out)
    assert settings["tie_word_embeddings"] is True
    assert settings["quantization_config"]["lm_head"] is False
    assert HEAD not in values_of(out)
