"""Rows and columns of matrices of every layout: the values that they have in the whole matrix."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.matrix_rows import Tensor, pick_columns, pick_inputs, pick_outputs, pick_rows
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import open_tensors
from tests.models.test_quantized_checkpoint import FIXTURES, FOLDERS
from tools.random_gguf import random_gguf

DOWN = "model.layers.0.mlp.down_proj.weight"
#: Layouts in which inputs are in another order.
ORDERED = {"gptq-w4-g32-act-order", "ct-w4a16-g32-actorder"}


def matrix_of(folder: Path, name: str) -> Tensor:
    return open_tensors(folder, read_model_config(folder)).tensor(name)


def check_rows(matrix: Tensor) -> None:
    count, values = matrix.shape[0], matrix.float32()
    rng = np.random.default_rng(0)
    for rows in (np.arange(count // 3, count), np.arange(8, 40), rng.permutation(count)[:17]):
        found = pick_rows(matrix, rows)
        assert found.shape == (len(rows), matrix.shape[1])
        np.testing.assert_array_equal(found.float32(), values[rows])


def check_columns(matrix: Tensor, unit: int) -> None:
    count, values = matrix.shape[1], matrix.float32()
    for columns in (range(unit), range(unit, count)):
        found = pick_columns(matrix, columns)
        assert found.shape == (matrix.shape[0], len(columns))
        part = values[:, columns.start : columns.stop]
        np.testing.assert_array_equal(found.float32(), part)


@pytest.mark.parametrize("name", FOLDERS)
def test_rows_of_a_checkpoint(name: str) -> None:
    check_rows(matrix_of(FIXTURES / name, DOWN))


@pytest.mark.parametrize("name", [name for name in FOLDERS if name not in ORDERED])
def test_columns_of_a_checkpoint(name: str) -> None:
    matrix = matrix_of(FIXTURES / name, DOWN)
    assert isinstance(matrix, QuantizedTensor)
    size = matrix.form.group_size
    check_columns(matrix, 32 if size >= matrix.shape[1] else size)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_and_columns_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    random_gguf(path, name)
    matrix = matrix_of(path, "blk.0.ffn_down.weight")
    check_rows(matrix)
    if matrix.shape[1] > 256:
        check_columns(matrix, 256)


def test_runs_of_nested_scales_stay_where_rows_are_whole_runs() -> None:
    matrix = matrix_of(FIXTURES / "bnb-nf4-nested", DOWN.replace("down", "gate"))
    assert isinstance(matrix, QuantizedTensor) and matrix.nested is not None
    count, groups = matrix.scales.shape
    rows = math.lcm(matrix.nested.run, groups) // groups
    assert 1 < rows < count
    for first, last, stays in ((0, rows, True), (rows, count, True), (1, rows, False)):
        part = pick_rows(matrix, np.arange(first, last))
        assert isinstance(part, QuantizedTensor)
        assert (part.nested is not None) is stays


def test_matrices_that_are_stored_transposed() -> None:
    matrix = matrix_of(FIXTURES / "gptq-w4-g32", "lm_head.weight")
    values = matrix.float32()
    np.testing.assert_array_equal(pick_outputs(matrix, np.arange(3, 9)).float32(), values[:, 3:9])
    np.testing.assert_array_equal(pick_inputs(matrix, range(4, 11)).float32(), values[4:11])
