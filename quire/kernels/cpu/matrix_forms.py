"""Weights of every form that matrix tiles multiply, made of nothing, to measure products with.

What a form is native/runtime/matrix_rows.h says: how codes become bytes, how many of them make one
product, and whether sums of activations are added. What scales are does not matter.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.matrices.activation_scheme import ActivationScheme
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.lattice_matrix import lattice_form
from quire.kernels.matrices.quantized_tensor import CODE_BITS, QuantizedForm
from quire.kernels.matrices.small_floats import E2M1
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.kernels.packed_weights import PackedWeights

#: Columns that share a scale: half a record, a record, and what is joined of up to four bits.
GROUP_SIZES = (16, 32, 128)
MOST_JOINED_BITS = 4
#: Columns of a sample are multiples of this.
COLUMNS = 256
#: What bytes of a sample are, so that any of them are usual numbers where they are read as such.
LOWEST_BYTE, HIGHEST_BYTE = 32, 60
ALIGNMENT = 64


def quantized_forms(rows: int = 32, columns: int = COLUMNS) -> dict[str, QuantizedForm]:
    """Return a form of weights (rows, columns) by the name that its measured rows are kept as."""
    forms = {}
    for bits, size, offsets in product(CODE_BITS, GROUP_SIZES, (False, True)):
        if size > 32 and bits > MOST_JOINED_BITS:
            continue
        # Formats with offsets have codes from 0 on. Bytes go in tiles with a zero of 128 only.
        zero = 1 << bits - 1 if bits == 8 or not offsets else 0
        name = f"{bits} bits, groups of {size}{', offsets' * offsets}"
        forms[name] = QuantizedForm(bits, size, "float16", zero, has_offsets=offsets)
    book = tuple(E2M1.tolist())
    for size in GROUP_SIZES:
        forms[f"code book, groups of {size}"] = QuantizedForm(4, size, "float16", code_book=book)
    whole = ActivationScheme("int8")
    forms["bytes of whole rows"] = QuantizedForm(8, columns, "float32", 128, activations=whole)
    for size in GROUP_SIZES[1:]:  # what the number of columns is a multiple of
        name = f"tables of rows, groups of {size}"
        forms[name] = QuantizedForm(4, size, "none", table_type="float16")
    for name, codes in VECTOR_CODES.items():
        forms[name] = QuantizedForm(codes.bits, codes.group_size, "odd", codes.zero, vectors=name)
    forms["E8P"] = lattice_form(1, rows, columns)
    forms["E4M3"] = QuantizedForm(8, 128, "float32", float_codes=True)
    return forms


def sample_of(form: QuantizedForm, rows: int, columns: int) -> CpuLinear:
    """Return weights (rows, columns) of a form; two of one form are alike."""
    random = np.random.default_rng(0)
    size = form.matrix_bytes(rows, columns)
    data = random.integers(LOWEST_BYTE, HIGHEST_BYTE, size + ALIGNMENT, np.uint8)
    data = data[-data.ctypes.data % ALIGNMENT :][:size]
    if form.rotation is not None:
        data[-form.rotation.tail_bytes(rows, columns) :].view(np.float32)[:] = 1
    return CpuLinear([PackedWeights(("sample",), (rows, columns), "", form, data)])


def bfloat16_sample(rows: int, columns: int) -> CpuLinear:
    """Return bfloat16 weights (rows, columns)."""
    numbers = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    brains = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return CpuLinear([HostTensor("sample", "bfloat16", brains)])


def form_number(layer: CpuLinear) -> int | None:
    """Return the number of the form of a linear's first weights; None where tiles never do."""
    number: int = layer.matrices[0][0].matrix_form
    return number if number >= 0 else None
