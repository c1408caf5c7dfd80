"""The rows for tiles: what is measured decides, is kept, and leaves nothing else changed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from quire.kernels.cpu import matrix_rows, measured_once
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.matrix_rows import NEVER, ROWS, agree, least_rows
from quire.kernels.cpu.native import native
from quire.kernels.host_tensor import HostTensor
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.quantized_cases import random_quantized

ISAS = ALL_ISAS
BRAINS = HostTensor("w", "bfloat16", np.arange(0x3F00, 0x42C0, dtype=np.uint16).reshape(30, 32))


@pytest.mark.parametrize("pays_from", [*ROWS, 100])
def test_the_least_rows_that_pay(pays_from):
    least = least_rows(lambda rows, tiles: rows if not tiles else pays_from)
    assert least == (pays_from if pays_from in ROWS else NEVER)


def test_one_slow_number_of_rows_ends_it():
    assert least_rows(lambda rows, tiles: float(tiles and rows == 8)) == 12


def test_bits_that_differ_are_seen():
    assert agree(lambda tiles: np.float32([1]))
    assert not agree(lambda tiles: np.float32([1 + tiles * 2.0**-23]))
    assert not agree(lambda tiles: np.float32([0.0 if tiles else -0.0]))


def test_tiles_and_vectors_agree_here(isa):
    before = native.matrix_rows()
    for weight in (random_quantized(70, 96, 4, 32, False, False), BRAINS):
        assert agree(partial(matrix_rows._product, CpuLinear([weight])))
    native.set_matrix_rows(*before)


def test_measuring_changes_nothing(isa):
    before = native.matrix_rows()
    found = matrix_rows.measure(64, 64)
    assert all(rows in (*ROWS, NEVER) for rows in found)
    assert native.matrix_rows() == before


def test_only_amx_measures_and_keeps(isa, tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    before = native.matrix_rows()
    CpuBackend(threads=1)
    kept = measured_once.remembered(matrix_rows.NAME, matrix_rows.KEYS)
    assert (kept is not None) == (isa == "amx")
    assert native.matrix_rows() == (before if kept is None else tuple(np.int64(kept)))
    native.set_matrix_rows(*before)
