"""Kept statistics: computed once, equal for every method, and of nothing else than they say."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quire.checkpoints.gguf.importance_matrix import read_importance_matrix
from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.checkpoints.safetensors_writer import tensor_data, write_safetensors
from quire.cli.main import run
from quire.quantization.producers.gptq import quantize_gptq
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantizing.inputs import statistics
from tests.quantizing.stored_values import FEW, files_of, values_of

ONE = ("--threads", "1")
METHODS = {
    "gptq": ("--method", "gptq", "--group-size", "32"),
    "act-order": ("--method", "gptq", "--group-size", "32", "--act-order"),
    "awq": ("--method", "awq", "--group-size", "32"),
    "smoothquant": ("--method", "smoothquant"),
    "fp8": ("--method", "fp8", "--static-inputs"),
}


@pytest.fixture(scope="module")
def kept(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Statistics of a small model, which ``quire imatrix`` has computed."""
    folder = tmp_path_factory.mktemp("kept")
    options = ("--statistics", str(folder / "statistics"), *FEW, *ONE)
    assert run(["imatrix", str(checkpoint()), str(folder / "i.gguf"), *options]) == 0
    return folder / "statistics"


def no_runner(*_: object) -> None:
    raise AssertionError("a layer is computed")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_what_another_kept(
    checkpoint: Callable[..., Path],
    kept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """Its bytes are those of a run that computed them for itself."""
    source, options = str(checkpoint()), (*METHODS[method], *FEW, *ONE)
    own = ("--statistics", str(tmp_path / "own"))
    assert run(["quantize", source, str(tmp_path / "a"), *options, *own]) == 0
    before = files_of(kept)
    monkeypatch.setattr(statistics, "LayerRunner", no_runner)
    monkeypatch.setattr("quire.quantizing.inputs.layer_inputs.LayerRunner", no_runner)
    given = ("--statistics", str(kept))
    assert run(["quantize", source, str(tmp_path / "b"), *options, *given]) == 0
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert files_of(kept) == before == files_of(tmp_path / "own")


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_the_first_layer_is_as_without(
    checkpoint: Callable[..., Path], kept: Path, quantized: Callable[..., Path], method: str
) -> None:
    """It has no quantized layers before it; the others have, and come out otherwise."""
    options = (*METHODS[method], *FEW)
    alone = values_of(quantized(checkpoint(), *options))
    found = values_of(quantized(checkpoint(), *options, "--statistics", str(kept)))
    layers = {
        name.split(".")[2]: []  # of whether a tensor is the same
        for name in alone
        if name.startswith("model.layers.")
    }
    for name, values in alone.items():
        if name.startswith("model.layers."):
            layers[name.split(".")[2]].append(np.array_equal(values, found[name]))
    assert all(layers["0"]) and not all(layers["1"]) and not all(layers["2"])


def test_they_are_of_the_inputs_that_transformers_has(
    checkpoint: Callable[..., Path], kept: Path, quantized: Callable[..., Path]
) -> None:
    pytest.importorskip("torch")
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    source = checkpoint()
    found = values_of(quantized(source, *METHODS["gptq"], *FEW, "--statistics", str(kept)))
    inputs, samples = LinearInputs(source), calibration_samples(source, FEW)
    grid, seen = IntegerGrid(4, 32), inputs.of("model.layers.2.", samples)
    for module, rows in seen.items():
        name = f"{module}.weight"
        made = quantize_gptq(name, inputs.weight(name), rows.T @ rows, grid).float32()
        # A weight on the border of two codes may take the other one, and others follow.
        assert (made != found[name]).mean() < 0.02, name


def test_importance_is_the_same_with_and_without(
    checkpoint: Callable[..., Path], kept: Path, tmp_path: Path
) -> None:
    made = {}
    for name, options in {"with": ("--statistics", str(kept)), "without": ()}.items():
        path = tmp_path / f"{name}.gguf"
        assert run(["imatrix", str(checkpoint()), str(path), *FEW, *ONE, *options]) == 0
        made[name] = read_importance_matrix(path).entries
    assert made["with"].keys() == made["without"].keys()
    for name, entry in made["with"].items():
        np.testing.assert_array_equal(entry.sums, made["without"][name].sums)
        np.testing.assert_array_equal(entry.counts, made["without"][name].counts)


def test_experts_that_saw_nothing_have_none(
    checkpoint: Callable[..., Path], tmp_path: Path, quantized: Callable[..., Path]
) -> None:
    source, folder = checkpoint("tiny-mixtral"), tmp_path / "kept"
    options = (*METHODS["gptq"], "--samples", "1", "--sample-length", "2")
    out = quantized(source, *options, "--statistics", str(folder))
    assert len(values_of(out)) == len(values_of(source))
    names = SafetensorsFile(folder / "layer-00000.safetensors").entries
    assert 0 < sum(name.endswith(".w1.rows") for name in names) < 4


def test_what_was_not_kept_yet_is_computed(
    checkpoint: Callable[..., Path], kept: Path, tmp_path: Path
) -> None:
    """A run that was killed has left some layers; a file that is half written has no name."""
    part = shutil.copytree(kept, tmp_path / "part")
    (part / "layer-00001.safetensors").unlink()
    options = (*METHODS["gptq"], *FEW, *ONE, "--statistics", str(part))
    assert run(["quantize", str(checkpoint()), str(tmp_path / "out"), *options]) == 0
    assert files_of(part) == files_of(kept)


def refused(source: Path, tmp_path: Path, *options: str) -> None:
    assert run(["quantize", str(source), str(tmp_path / "out"), *options, *ONE]) == 1
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_those_of_something_else_are_refused_by_name(
    checkpoint: Callable[..., Path],
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, given = files_of(kept), ("--statistics", str(kept))
    gptq = METHODS["gptq"]
    refused(checkpoint(), tmp_path, *gptq, "--samples", "7", "--sample-length", "128", *given)
    assert "must be of this calibration text; got" in capsys.readouterr().err
    other = shutil.copytree(checkpoint(), tmp_path / "other")
    os.utime(other / "model.safetensors", ns=(1, 1))
    refused(other, tmp_path, *gptq, *FEW, *given)
    assert "must be of this source; got" in capsys.readouterr().err
    old = shutil.copytree(kept, tmp_path / "old")
    key = json.loads((old / statistics.KEY).read_text())
    (old / statistics.KEY).write_text(json.dumps(key | {"version": 0}))
    refused(checkpoint(), tmp_path, *gptq, *FEW, "--statistics", str(old))
    assert "must be of this version; got" in capsys.readouterr().err
    (old / statistics.KEY).write_text("{")
    refused(checkpoint(), tmp_path, *gptq, *FEW, "--statistics", str(old))
    assert "must be JSON" in capsys.readouterr().err
    assert files_of(kept) == before


def test_a_folder_of_other_files_stays(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "notes.txt").write_text("kept")
    refused(checkpoint(), tmp_path, *METHODS["gptq"], *FEW, "--statistics", str(folder))
    assert "must be a new or an empty folder, or one of statistics" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_two_writers_are_refused(
    checkpoint: Callable[..., Path],
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = shutil.copytree(kept, tmp_path / "part")
    (part / "layer-00002.safetensors").unlink()
    with (part / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(checkpoint(), tmp_path, *METHODS["gptq"], *FEW, "--statistics", str(part))
    assert "must have one writer" in capsys.readouterr().err


PRODUCTS = "model.layers.0.self_attn.q_proj.products.0"
DAMAGE = {
    "missing": (PRODUCTS, None, "of none, not F64"),
    "transposed": (PRODUCTS, lambda array: array[:, :8], "not F64"),
    "another type": (PRODUCTS, lambda array: array.astype(np.float32), "of F32"),
    "no number": (PRODUCTS, lambda array: array * np.nan, "infinity or NaN"),
    "no rows": (
        "model.layers.0.self_attn.q_proj.rows",
        lambda array: array * 0,
        "of 0 rows, 512 of them kept",
    ),
    "too many": (
        "model.layers.0.self_attn.q_proj.rows",
        lambda array: array + (1 << 50),
        "rows, 512 of them kept",
    ),
    "large sample": (
        "model.layers.0.self_attn.q_proj.sample",
        lambda array: np.concatenate([array] * 9),
        "4608 of them kept",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_tensors_that_cannot_be_are_refused_by_name(
    checkpoint: Callable[..., Path],
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    name, change, message = DAMAGE[kind]
    damaged = shutil.copytree(kept, tmp_path / "damaged")
    path = damaged / "layer-00000.safetensors"
    arrays = {key: SafetensorsFile(path).array(key).copy() for key in SafetensorsFile(path).entries}
    array = arrays.pop(name)
    if change is not None:
        arrays[name] = np.ascontiguousarray(change(array))
    for _ in write_safetensors(path, {key: tensor_data(each) for key, each in arrays.items()}):
        pass
    refused(checkpoint(), tmp_path, *METHODS["gptq"], *FEW, "--statistics", str(damaged))
    told = capsys.readouterr().err
    assert f"got {name}" in told or "rows" in name or "sample" in name
    assert message in told


@pytest.mark.parametrize("length", [0, 7, 100, 5000])
def test_a_file_that_is_cut_off_is_refused(
    checkpoint: Callable[..., Path],
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    length: int,
) -> None:
    damaged = shutil.copytree(kept, tmp_path / "damaged")
    path = damaged / "layer-00000.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    refused(checkpoint(), tmp_path, *METHODS["gptq"], *FEW, "--statistics", str(damaged))
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "rtn"), "--statistics must come with a method that looks at"),
        ((*METHODS["gptq"], *FEW, "--true-sequential"), "--statistics must come without"),
    ],
)
def test_where_they_have_no_use_they_are_refused(
    checkpoint: Callable[..., Path],
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    refused(checkpoint(), tmp_path, *options, "--statistics", str(kept))
    assert message in capsys.readouterr().err
