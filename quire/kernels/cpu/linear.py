"""Linear layers on the packed native weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Weight
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.cpu.native import DTYPE_CODES, native
from quire.kernels.linear import check_input, check_weights, held_dtype
from quire.kernels.matrices.activation_scheme import CODES
from quire.kernels.matrices.block_matrix import BlockMatrix
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.lattice_codes import STEP, kernel_codes, kernel_table
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.nested_scales import NestedScales
from quire.kernels.matrices.quantized_tensor import (
    QuantizedForm,
    QuantizedTensor,
    integer_code_book,
    stacked_form,
)
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.kernels.packed_weights import PackedWeights

#: As ScaleForm, ZeroForm and RowForm of native/include/quantized.h; other scales are direct.
SCALE_FORMS = {"int8": 1, "int4": 2, "e4m3": 3, "e8m0": 4, "nested": 5, "odd": 6, "none": 7}
ZERO_FORMS = {None: 0, "uint8": 1, "float16": 2}
ROW_FORMS = {None: 0, "times": 1, "over": 2}
#: As VectorForm::e8p of native/include/vectors.h.
LATTICE_FORM = 8


class CpuLinear:
    """See ``kernels/linear.py`` for the maths and ``kernels/backend.py`` for the protocol.

    Matrices that are held alike are packed as one; others lie side by side in the output.

    Attributes:
        in_features, out_features: Inputs and outputs of the stacked matrices.
        nbytes: Memory of the packed weights and biases.
        packed: Packed weights, from the first output to the last.
        matrices: The same as objects of the native module, each with its first output.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        biases: Sequence[HostTensor] = (),
        dtype: str | None = None,
        exact_activations: bool = False,
    ) -> None:
        """Pack the matrices, reading each source once.

        Args:
            weights: Floats are held as ``dtype``, quantized ones as they are.
            biases: Stacked like the weights.
            dtype: ``float32``, ``float16`` or ``bfloat16``; None for the type they are stored in.
            exact_activations: Whether quantized weights meet float32 activations instead of
                activations rounded to 8 bits.

        Raises:
            UnsupportedInputError: See :func:`quire.kernels.linear.check_weights`.
        """
        dtype = held_dtype(weights, dtype)
        self.in_features, self.out_features = check_weights(weights, biases, dtype)
        self.matrices: list[tuple[Any, int]] = []
        made: list[PackedWeights] = []
        first = 0
        for _, run in groupby(weights, _run):
            matrix, packed = _pack(list(run), dtype, exact_activations)
            self.matrices.append((matrix, first))
            made.append(packed)
            first += packed.shape[0]
        self.packed: Sequence[PackedWeights] = made
        if biases:
            bias = np.concatenate([bias.float32() for bias in biases])
            for matrix, column in self.matrices:
                matrix.set_bias(bias[column:])
        self.nbytes: int = sum(matrix.nbytes for matrix, _ in self.matrices)

    def __call__(
        self, x: np.ndarray, out: np.ndarray | None = None, rows: BatchRows | None = None
    ) -> np.ndarray:
        """Multiply (T, in_features) float32 to (T, out_features) float32, contiguous both."""
        check_input(x, self.in_features)
        if out is None:
            out = np.empty((x.shape[0], self.out_features), np.float32)
        for matrix, column in self.matrices:
            matrix.multiply(x, x.shape[0], out, column, self.out_features)
        return out

    def lookup(
        self, ids: np.ndarray, out: np.ndarray | None = None, rows: BatchRows | None = None
    ) -> np.ndarray:
        """Return weight rows ``ids`` (T,) int32 as (T, in_features) float32.

        Raises:
            UnsupportedInputError: The matrices are held in different ways.
        """
        if len(self.matrices) > 1:
            raise UnsupportedInputError(
                "[lookup] the matrices of a table must be held alike; got "
                f"{len(self.matrices)} ways."
            )
        if (form := self.packed[0].form) is not None and form.rotation is not None:
            raise UnsupportedInputError(
                f"[lookup] a table must not be rotated; got {self.packed[0].name}, {form}."
            )
        if out is None:
            out = np.empty((ids.shape[0], self.in_features), np.float32)
        self.matrices[0][0].lookup(ids, ids.shape[0], out)
        return out


def _form(weight: Weight) -> QuantizedForm | None:
    return None if isinstance(weight, HostTensor) else weight.form


def _run(weight: Weight) -> object:
    """Return what is the same of neighbours that are packed as one."""
    if isinstance(weight, PackedWeights | LatticeMatrix):
        return id(weight)
    order = weight.input_order if isinstance(weight, QuantizedTensor) else None
    form = _form(weight)
    return None if form is None else form.kind, None if order is None else order.tobytes()


def _pack(
    weights: Sequence[Weight], dtype: str, exact_activations: bool
) -> tuple[Any, PackedWeights]:
    """Pack matrices of one form, or take those that are packed; also as a native object."""
    first, forms = weights[0], [form for form in map(_form, weights) if form is not None]
    form = stacked_form(forms) if forms else None
    columns, num_rows = first.shape[1], sum(weight.shape[0] for weight in weights)
    mapped = first.data if isinstance(first, PackedWeights) else None
    dtype = "" if form else first.dtype if isinstance(first, PackedWeights) else dtype
    if form is None:
        matrix = native.PackedFloatWeights(columns, num_rows, DTYPE_CODES[dtype], mapped)
    else:
        names = first.names if isinstance(first, PackedWeights) else weights
        matrix = _allocate(form, columns, num_rows, len(names), exact_activations, mapped)
    if isinstance(first, PackedWeights):
        return matrix, first
    _fill(matrix, weights)
    names = tuple(weight.name for weight in weights)
    return matrix, PackedWeights(names, (num_rows, columns), dtype, form, matrix.data)


def _fill(packed: Any, weights: Sequence[Weight]) -> None:
    row = run = outlier = 0
    for weight in weights:
        rows = weight.shape[0]
        if isinstance(weight, QuantizedTensor):
            scales = weight.scales if weight.tables is None else weight.tables
            headers = weight.row_scales
            if weight.nested is not None:
                headers, run = _pack_nested(packed, weight.nested, weight.scales.shape, run)
            if weight.form.has_code_sums:
                sums = weight.codes.sum(axis=1, dtype=np.int64) - weight.zero * weight.shape[1]
                headers = sums.astype(np.int32)
            parts = (weight.codes, scales, weight.offsets, weight.zeros, headers)
            packed.pack(*parts, row, rows)
            if weight.outliers is not None:
                own, count = weight.outliers, weight.outliers.count
                arrays = (own.starts, own.columns, own.values)
                packed.set_outliers(arrays, row, rows, outlier, count)
                outlier += count
            if weight.input_order is not None:
                packed.set_input_order(weight.input_order)
        elif isinstance(weight, BlockMatrix):
            packed.pack_gguf(weight.rows, weight.type_code, row, rows)
        elif isinstance(weight, LatticeMatrix):
            _fill_lattice(packed, weight)
        elif isinstance(weight, HostTensor):
            packed.pack(weight.array, DTYPE_CODES[weight.dtype], row, rows)
        row += rows


def _fill_lattice(packed: Any, weight: LatticeMatrix) -> None:
    """Pack all of a matrix; what its transforms would be divided by goes into the factors."""
    (rows, columns), form = weight.shape, weight.form.rotation
    assert form is not None
    packed.set_rotation(
        weight.input_factors / np.float32(np.sqrt(columns // form.input_base)),
        weight.output_factors / np.float32(np.sqrt(rows // form.output_base)),
        np.ascontiguousarray(weight.input_matrix.T),
        np.ascontiguousarray(weight.output_matrix),
    )
    scales = np.multiply.outer(weight.row_scales, weight.stage_scales * np.float32(STEP))
    packed.pack_lattice(np.ascontiguousarray(kernel_codes(weight.codes)), scales)


def _pack_nested(
    packed: Any, nested: NestedScales, shape: tuple[int, ...], run: int
) -> tuple[np.ndarray, int]:
    """Pack the runs of (N, G) scales as those from ``run`` on.

    Returns:
        (N,) int32, the index at which each row's scales begin, and the run of the next matrix.
    """
    pairs = nested.pairs()
    packed.set_nested(nested.table, pairs, run, len(pairs))
    first = run * nested.run + shape[1] * np.arange(shape[0], dtype=np.int32)
    return first.astype(np.int32), run + len(pairs)


def _allocate(
    form: QuantizedForm,
    columns: int,
    num_rows: int,
    num_matrices: int,
    exact_activations: bool,
    mapped: Any,
) -> Any:
    """Allocate quantized weights of a form, or take those in ``mapped``."""
    nested, groups = form.nested, -(-columns // form.group_size)
    layout = {
        "group_size": form.group_size,
        "bits": form.bits,
        "zero": form.zero,
        "scale_dtype": DTYPE_CODES.get(form.table_type or form.scale_type, DTYPE_CODES["float16"]),
        "scale_form": SCALE_FORMS.get(form.scale_type, 0),
        "zero_form": ZERO_FORMS[form.zero_type],
        "row_form": ROW_FORMS[form.row_form],
        "has_offsets": form.has_offsets,
        "float_codes": form.float_codes,
        "has_input_order": form.has_input_order,
        "has_code_sums": form.has_code_sums,
    }
    if nested is not None:
        layout["run_shift"] = nested.run.bit_length() - 1
        layout["num_runs"] = nested.num_runs(num_rows * groups, num_matrices)
    rotation = form.rotation
    if rotation:
        layout["vectors"] = LATTICE_FORM
        layout["stages"] = rotation.stages
        layout["input_base"] = rotation.input_base
        layout["output_base"] = rotation.output_base
    elif form.vectors:
        layout["vectors"] = VECTOR_CODES[form.vectors].number
    if form.num_outliers is not None:
        layout["num_outliers"] = form.num_outliers
    packed = native.PackedQuantizedWeights(columns, num_rows, layout, exact_activations, mapped)
    scheme = form.activations
    if scheme is not None and not exact_activations:
        packed.set_activations(
            CODES[scheme.codes],
            scheme.group_size,
            scheme.scale,
            scheme.zero,
            scheme.has_zeros,
            scheme.threshold,
            scheme.has_power_factors,
        )
    if rotation:
        packed.set_vectors(kernel_table(), 1.0)
    elif form.vectors:
        vectors = VECTOR_CODES[form.vectors]
        packed.set_vectors(vectors.table(), vectors.step)
    if form.code_book is not None:
        codes, step = integer_code_book(np.array(form.code_book, np.float32))
        packed.set_book(list(form.code_book), codes.tolist(), step)
    return packed
