"""Every form of weights that anything packs is among those whose rows for tiles are measured.

Q4_0 and Q8_0 went in tiles where these took four times as long: what was measured had no zero, as
no format has it.
"""

from __future__ import annotations

import pytest

from quire.checkpoints.gguf.gguf_types import FORMS
from quire.checkpoints.quantized.quantized_checkpoint import MatrixEntry
from quire.kernels.cpu.matrix_forms import COLUMNS, form_number, quantized_forms, sample_of
from quire.kernels.matrices.lattice_matrix import lattice_form
from quire.quantization.rounding_schemes import create_scheme
from tests.models.test_quantized_checkpoint import FIXTURES, FOLDERS, opened

ROWS = 64
SCHEMES = ("int8", "int6", "int5", "int4", "int3", "int2", "nf4")
#: Columns of a matrix, whole multiples of 128 or not.
WIDTHS = (1024, 1056)


FORMS_MEASURED = tuple(quantized_forms(ROWS).values())


def measured() -> set[int | None]:
    return {form_number(sample_of(form, ROWS, COLUMNS)) for form in FORMS_MEASURED}


def test_samples_are_of_different_forms() -> None:
    assert None not in measured()
    assert len(measured()) == len(FORMS_MEASURED)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [None, 16, 32, 64, 128, 0])
@pytest.mark.parametrize("name", SCHEMES)
def test_forms_that_are_made_at_load_are_measured(name: str, size: int | None, width: int) -> None:
    form = create_scheme(name, size).form(width)
    assert form_number(sample_of(form, ROWS, width)) in measured()


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_gguf_are_measured(name: str) -> None:
    assert form_number(sample_of(FORMS[name], ROWS, 1024)) in measured()


def test_samples_have_a_zero_where_formats_have_one() -> None:
    samples = {form_number(sample_of(form, ROWS, COLUMNS)): form for form in FORMS_MEASURED}
    for name, form in FORMS.items():
        sample = samples[form_number(sample_of(form, ROWS, 1024))]
        assert bool(sample.zero) == bool(form.zero), name


@pytest.mark.parametrize("folder", FOLDERS)
def test_forms_of_checkpoints_are_measured(folder: str) -> None:
    checkpoint = opened(FIXTURES / folder)
    entries = [checkpoint.entry(name) for name in checkpoint.names]
    matrices = {entry.form: entry for entry in entries if isinstance(entry, MatrixEntry)}
    assert matrices
    for form, entry in matrices.items():
        assert form_number(sample_of(form, *entry.shape)) in measured()


@pytest.mark.parametrize("stages", [1, 2])
def test_forms_of_lattice_codes_are_measured(stages: int) -> None:
    assert form_number(sample_of(lattice_form(stages, ROWS, 1024), ROWS, 1024)) in measured()
