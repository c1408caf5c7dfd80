"""QuIP-for-all's files: written, read back, read literally, and refused where they are others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.formats.quip import store_quip
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.core.errors import ModelLoadError, UnsupportedArchitectureError, WeightMismatchError
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.quantizing.scheme import QuantizationScheme, create_scheme
from quire.quantizing.stored_format import FORMATS
from tests.kernels.lattice_cases import literal_weights, random_lattice

MODULE = "model.layers.0.mlp.down_proj"
SETTINGS = {"quant_method": "QUiP", "codebook": "E8P12", "merge_suv": False}


def read(folder: Path, settings: dict[str, Any], parts: dict[str, np.ndarray]) -> LatticeMatrix:
    """Write a checkpoint of one matrix and read it."""
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    save_file(
        {f"{MODULE}.{name}": part for name, part in parts.items()}, folder / "model.safetensors"
    )
    quantization = read_quantization(folder)
    assert quantization is not None
    found = QuantizedCheckpoint(Checkpoint(folder), quantization).tensor(f"{MODULE}.weight")
    assert isinstance(found, LatticeMatrix)
    return found


def stored(rows: int = 24, columns: int = 40) -> dict[str, np.ndarray]:
    """Return the parts of a matrix of 2 bits."""
    matrix = random_lattice(rows, columns)
    matrix.row_scales[:] = 0.0123
    return store_quip(matrix)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("shape", [(24, 40), (64, 32)])
def test_what_is_written_is_read(tmp_path: Path, bits: int, shape: tuple[int, int]) -> None:
    matrix = random_lattice(*shape, stages=bits // 2)
    matrix.row_scales[:] = 0.0123
    scheme: QuantizationScheme = create_scheme("quip", {"bits": bits})
    form = FORMATS["quip"]
    found = read(tmp_path, form.config({MODULE: scheme}, []), store_quip(matrix))
    for part in LatticeMatrix.__slots__[1:]:
        np.testing.assert_array_equal(getattr(found, part), getattr(matrix, part), part)
    assert form.store(matrix, scheme).keys() == store_quip(matrix).keys()


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_matrix_is_what_quip_for_all_computes(tmp_path: Path, per_channel: bool) -> None:
    """Its forward pass, line by line, in float64: of the identity, so the matrix itself."""
    random = np.random.default_rng(0)
    rows, columns = 24, 80
    parts = stored(rows, columns)
    parts["SU"] = random.normal(1, 0.1, columns).astype(np.float16)
    parts["weight"] = np.zeros((), np.float16)
    if per_channel:
        parts["Wscale"] = random.uniform(0.01, 0.1, rows).astype(np.float16)
    found = read(tmp_path, SETTINGS, parts)

    def transform(x: np.ndarray, base: np.ndarray) -> np.ndarray:
        power = x.shape[1] // len(base)
        runs = x.reshape(len(x), len(base), power)
        signs = [[(-1) ** bin(i & j).count("1") for j in range(power)] for i in range(power)]
        return (base @ (runs @ np.array(signs) / np.sqrt(power))).reshape(x.shape)

    x = np.eye(columns) * parts["SU"]
    x = transform(x, parts["had_left"].T.astype(np.float64))
    codes = parts["Qidxs"].view(np.uint16)
    weight = np.array([[literal_weights(int(c)) for c in row] for row in codes])
    out = x @ weight.reshape(rows, columns).T * parts["Wscale"].astype(np.float64)
    out = transform(out, parts["had_right"].astype(np.float64)) * parts["SV"]
    assert np.abs(found.float32() - out.T).max() <= 1e-6 * np.abs(out).max()


def test_settings_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "quantization_config.json").write_text(json.dumps(SETTINGS))
    found = read_quantization(tmp_path)
    assert found is not None and found.method == "quip"


def test_merged_factors_are_ones(tmp_path: Path) -> None:
    parts = stored()
    del parts["SU"]
    with pytest.raises(WeightMismatchError, match="must have SU"):
        read(tmp_path, SETTINGS, parts)
    found = read(tmp_path, SETTINGS | {"merge_suv": True}, parts)
    assert (found.input_factors == 1).all() and (np.abs(found.output_factors) == 1.5).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codebook": "D4"}, "codebook must be one of E8P12, E8P12RVQ4B"),
        ({"codebook": None}, "codebook"),
        ({"opt_resid_scale": "x"}, "opt_resid_scale must be a finite number"),
        ({"codebook": "E8P12RVQ4B"}, "Qidxs must be one of I32; got I16"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, SETTINGS | changes, stored())


def test_files_of_quip_sharp_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quip_params": {"codebook": "E8P12"}}))
    with pytest.raises(UnsupportedArchitectureError, match=r"quip_params.*Use.*QuIP-for-all"):
        read_quantization(tmp_path)


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("Qidxs", np.zeros((24, 10), np.int16), "SU must have shape"),  # padded to a power of two
        ("Qidxs", np.zeros((5, 24), np.int16), "must have shape"),  # transposed
        ("Qidxs", np.zeros(120, np.int16), "Qidxs must be"),
        ("Qidxs", np.zeros((24, 0), np.int16), "Qidxs must be"),
        ("Qidxs", np.zeros((24, 5), np.int64), "Qidxs must be one of I16; got I64"),
        ("Qidxs", np.zeros((257, 5), np.int16), "sizes must be at most 255"),
        ("Wscale", np.array(np.nan, np.float32), "Wscale must be finite"),
        ("Wscale", np.ones(5, np.float32), "Wscale must have shape"),
        ("SV", np.full(24, np.inf, np.float16), "SV must be finite"),
        ("SU", np.ones(39, np.float16), "SU must have shape"),
        ("had_left", np.ones((3, 3), np.float32), "had_left must have shape"),
        ("had_left", None, "must have had_left"),
        ("had_right", np.full((3, 3), np.nan, np.float16), "had_right must be finite"),
    ],
)
def test_parts_of_other_shapes_are_refused(
    tmp_path: Path, name: str, part: np.ndarray | None, message: str
) -> None:
    parts = stored()
    del parts[name]
    if part is not None:
        parts[name] = part
    with pytest.raises(WeightMismatchError, match=message):
        read(tmp_path, SETTINGS, parts)


@pytest.mark.parametrize("seed", range(40))
def test_any_parts_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    """Parts are cut off, stretched, turned and given other types and numbers, several at a time."""
    random = np.random.default_rng(seed)
    parts = stored()
    for name in random.choice([*parts], 1 + seed % 3, replace=False):
        part = parts[name]
        kind = random.integers(0, 5)
        if kind == 0:
            parts[name] = part[: len(part) // 2] if part.ndim else part.reshape(1)
        elif kind == 1:
            parts[name] = np.ascontiguousarray(part.T)
        elif kind == 2:
            parts[name] = part.astype(random.choice(["int8", "float16", "float64", "int64"]))
        elif kind == 3:
            raw = random.integers(0, 256, part.nbytes, np.uint8)
            parts[name] = raw.view(part.dtype).reshape(part.shape)
        else:
            del parts[name]
    settings = SETTINGS | {"codebook": random.choice(["E8P12", "E8P12RVQ4B"]).item()}
    try:
        found = read(tmp_path, settings, parts)
    except ModelLoadError as error:
        assert str(error).startswith("[")
    else:
        assert found.shape == (24, 40)
