"""The rows for tiles: what is measured decides, is kept, and leaves nothing else changed."""

from __future__ import annotations

import numpy as np
import pytest

from quire.kernels.cpu import measured_once
from quire.kernels.cpu import tile_threshold as matrix_rows
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.matrix_forms import COLUMNS, bfloat16_sample, quantized_forms, sample_of
from quire.kernels.cpu.native import native
from quire.kernels.cpu.tile_threshold import KEYS, NEVER, ROWS, agree, best_rows, range_of_rows
from quire.system.env import cache_folder
from tests.kernels.conftest import ALL_ISAS

ISAS = ALL_ISAS


@pytest.fixture(autouse=True)
def rows_put_back():
    before = native.matrix_rows()
    yield
    native.set_matrix_rows(*before)


@pytest.mark.parametrize("pays_from", [*ROWS, 1000])
def test_the_least_rows_that_pay(pays_from):
    found = best_rows(lambda rows, tiles: rows if not tiles else pays_from)
    assert found == (pays_from if pays_from in ROWS else NEVER)


@pytest.mark.parametrize("spoiled", [8, 32, 128])
def test_one_number_of_rows_that_other_work_spoiled_decides_nothing(spoiled):
    """A slow product of 32 rows kept prompts of hundreds from tiles."""

    def seconds(rows, tiles):
        return (2.0 if rows < 6 else 0.5) * (1 + (rows == spoiled)) if tiles else 1.0

    assert best_rows(seconds) == 6


def test_both_kernels_are_tried_in_turn():
    """All times of one came before those of the other: work next to it slowed that one alone."""
    order = []

    def seconds(rows, tiles):
        order.append(tiles)
        busy = len(order) <= matrix_rows.ROUNDS
        return 5.0 if busy else 1.0 if tiles else 2.0

    assert best_rows(seconds) == ROWS[0]
    assert order[:4] == [True, False, True, False]


def test_bits_that_differ_are_seen():
    assert agree(lambda tiles: np.float32([1]))
    assert not agree(lambda tiles: np.float32([1 + tiles * 2.0**-23]))
    assert not agree(lambda tiles: np.float32([0.0 if tiles else -0.0]))


@pytest.mark.parametrize("name", KEYS)
def test_tiles_and_vectors_agree_here(isa, name):
    layer = bfloat16_sample(32, COLUMNS)
    if name in quantized_forms():
        layer = sample_of(quantized_forms()[name], 32, COLUMNS)
    product = matrix_rows._product(layer, True)
    assert np.abs(product[0]).max() > 0
    assert product.tobytes() == matrix_rows._product(layer, False).tobytes()


def test_measuring_changes_nothing(isa, monkeypatch):
    before = native.matrix_rows()
    monkeypatch.setattr(matrix_rows, "ROUNDS", 1)
    monkeypatch.setattr(matrix_rows, "ROWS", ROWS[:2])
    found = matrix_rows.measure(COLUMNS, 32)
    assert tuple(found) == KEYS
    assert set(found.values()) <= {*ROWS, NEVER}
    assert native.matrix_rows() == before


def test_each_form_has_the_rows_that_were_measured_for_it():
    rows = {name: place for place, name in enumerate(KEYS, 2)}
    matrix_rows.use(rows)
    by_form, bfloat16 = native.matrix_rows()
    assert bfloat16 == rows["bfloat16"]
    for name, form in quantized_forms(64, COLUMNS).items():
        assert by_form[sample_of(form, 64, COLUMNS).matrices[0][0].matrix_form] == rows[name]


def test_the_range_of_rows_is_told():
    rows = dict.fromkeys(KEYS, NEVER)
    matrix_rows.use(rows)
    assert range_of_rows() == ("", "")
    matrix_rows.use({**rows, "8 bits, groups of 32": 8, "E4M3": 2, "bfloat16": 4})
    assert range_of_rows() == ("8", "4")
    matrix_rows.use({**dict.fromkeys(KEYS, 12), "E8P": 24})
    assert range_of_rows() == ("12 to 24", "12")


def test_only_amx_measures_and_keeps(isa, tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    before = native.matrix_rows()
    CpuBackend(threads=1)
    kept = measured_once.remembered(matrix_rows.NAME, KEYS)
    assert (kept is not None) == (isa == "amx")
    if kept is None:
        assert native.matrix_rows() == before
        return
    used = native.matrix_rows()
    assert used[1] == kept[-1]
    CpuBackend(threads=1)
    assert native.matrix_rows() == used
    assert len(list(cache_folder().iterdir())) == 1
