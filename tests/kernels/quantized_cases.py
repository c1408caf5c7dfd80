"""Quantized matrices for tests, and the integer product simulated in numpy."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.matrices.activation_scheme import round_rows
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.nested_scales import NestedScales
from quire.kernels.matrices.quantized_tensor import QuantizedTensor, integer_code_book, padded
from quire.kernels.matrices.row_tables import Outliers
from quire.kernels.matrices.small_floats import E2M1, E4M3
from tests.kernels.unpacked_blocks import TwoLevelTensor

#: As IQ4_NL has it: whole numbers, so that nothing is lost in integers.
BOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)

#: bits, group size, with offsets, with a code book.
FORMATS = [
    (8, 32, False, False),
    (4, 32, False, False),
    (4, 32, True, False),
    (4, 32, False, True),
    (8, 64, True, False),
    (6, 16, False, False),
    (5, 32, True, False),
    (3, 16, False, False),
    (2, 16, True, False),
    (4, 64, False, True),
    (4, 128, False, False),
    (3, 192, True, False),
]

#: What formats besides GGUF's have. E4M3 codes are multiplied as floats only.
INTEGER_KINDS = [
    *("byte zeros", "float zeros", "ordered inputs", "e4m3", "e4m3 over", "e8m0", "nested"),
    "nested halves",
]
#: Those of groups of 16.
HALVES = ("e4m3", "e4m3 over", "nested halves")
OTHER_KINDS = [*INTEGER_KINDS, "E4M3", "E4M3 of rows"]


def random_quantized(
    rows: int, columns: int, bits: int, group_size: int, offsets: bool, book: bool, seed: int = 0
) -> QuantizedTensor:
    """Make a matrix of any codes, the extremes among them; half of them with float16 scales."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (rows, columns), np.uint8)
    codes[0] = 0
    codes[-1] = (1 << bits) - 1
    dtype = np.float16 if bits % 2 == 0 else np.float32
    groups = -(-columns // group_size)
    scales = (random.uniform(0.5, 2, (rows, groups)) / (1 << bits)).astype(dtype)
    return QuantizedTensor(
        name="w",
        bits=bits,
        group_size=group_size,
        codes=codes,
        scales=scales,
        zero=0 if book else 1 << bits - 1,
        offsets=random.normal(0, 0.1, (rows, groups)).astype(dtype) if offsets else None,
        code_book=BOOK if book else None,
    )


def other_quantized(kind: str, rows: int, columns: int, seed: int = 0) -> QuantizedTensor:
    """Make a matrix of a kind of :data:`OTHER_KINDS`, of any codes and scales it may have."""
    random = np.random.default_rng(seed)
    bits, size = (8, 64) if "E4M3" in kind else (4, 16 if kind in HALVES else 32)
    codes = random.integers(0, 1 << bits, (rows, columns), np.uint8)
    groups = -(-columns // size)
    scales = (random.uniform(0.5, 2, (rows, groups)) / (1 << bits)).astype(np.float16)
    made = QuantizedTensor("w", bits, size, codes, scales)
    if kind == "byte zeros":
        return replace(made, zeros=random.integers(0, 17, (rows, groups), np.uint8))
    if kind == "float zeros":
        return replace(made, zeros=random.uniform(0, 15, (rows, groups)).astype(np.float16))
    if kind == "ordered inputs":
        return replace(made, zero=8, input_order=random.permutation(columns).astype(np.int32))
    factors = random.uniform(0.001, 900, rows).astype(np.float32)
    if kind.startswith("e4m3"):
        byte_scales = random.integers(0, 127, (rows, groups), np.uint8)
        return replace(
            made,
            scales=byte_scales,
            scale_type="e4m3",
            code_book=E2M1,
            row_scales=factors,
            over_rows=kind.endswith("over"),
        )
    if kind.startswith("nested"):
        run = 16  # rows begin in the middle of one
        nested = NestedScales(
            table=np.linspace(-1, 1, 256, dtype=np.float32),
            numbers=random.uniform(0, 1, -(-rows * groups // run)).astype(np.float32),
            offset=0.25,
            run=run,
        )
        byte_scales = random.integers(0, 256, (rows, groups), np.uint8)
        return replace(made, scales=byte_scales, code_book=BOOK, nested=nested)
    if kind == "e8m0":
        byte_scales = random.integers(100, 140, (rows, groups), np.uint8)
        return replace(made, scales=byte_scales, scale_type="e8m0", code_book=E2M1)
    codes[(codes & 127) == 127] = 3
    if kind == "E4M3 of rows":
        whole = np.ones((rows, 1), np.float16)
        made = replace(made, scales=whole, group_size=padded(columns), row_scales=factors)
    return replace(made, float_codes=True)


def tables_quantized(
    rows: int, columns: int, bits: int, dtype: type, outliers: str = "", seed: int = 0
) -> QuantizedTensor:
    """Make a matrix of tables of rows, of any codes; K a multiple of 32.

    Args:
        rows: N.
        columns: K.
        bits: 3 or 4.
        dtype: Of tables.
        outliers: Empty for none; ``few``; or ``rows`` that are whole, one of them twice.
        seed: Of all numbers.
    """
    random = np.random.default_rng(seed)
    made = QuantizedTensor(
        name="w",
        bits=bits,
        group_size=padded(columns),
        codes=random.integers(0, 1 << bits, (rows, columns), np.uint8),
        scales=np.empty((rows, 0), np.float16),
        tables=random.standard_normal((rows, 1 << bits)).astype(dtype),
    )
    if not outliers:
        return made
    counts = random.integers(0, 5, rows) if outliers == "few" else np.zeros(rows, np.int64)
    if outliers == "rows":
        counts[[0, rows // 2, -1]] = columns, 2 * columns, columns
    count = int(counts.sum())
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    inputs = random.integers(0, columns, count).astype(np.int32)
    values = random.standard_normal(count).astype(np.float32)
    return replace(made, outliers=Outliers(starts, inputs, values))


def activation_inputs(weight: QuantizedTensor) -> int:
    """Return how many inputs of a row share a scale once they are rounded."""
    if weight.bits > 4 or isinstance(weight, TwoLevelTensor):
        return 32
    return next((size for size in (128, 64) if weight.group_size % size == 0), 32)


def quantize_activations(x: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (T, padded K) int32 and scales (T, groups of ``size``) float32 of x (T, K).

    Finite ones only; K is padded to a multiple of ``size``.
    """
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % size))).reshape(len(x), -1, size)
    most = np.abs(groups).max(axis=-1)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most >= 1e-30)
    codes = np.rint(groups * inverse[..., None]).astype(np.int32).reshape(len(x), -1)
    return codes, np.where(most < 1e-30, np.float32(0), most / np.float32(127))


def add(a: np.ndarray, b: np.ndarray, c: np.ndarray, fused: bool) -> np.ndarray:
    """Return ``a * b + c`` of float32, rounded once if ``fused``."""
    # Exact in float64, so one rounding to float32 is left (but for ties of chance 2 ** -29).
    return (a.astype(np.float64) * b + c).astype(np.float32) if fused else a * b + c


def over_rows(weight: QuantizedTensor, sums: np.ndarray) -> np.ndarray:
    """Return the sums of outputs, times or over the numbers of their rows."""
    if weight.row_scales is None:
        return sums
    return sums / weight.row_scales if weight.over_rows else sums * weight.row_scales


def simulate_float_codes(
    weight: QuantizedTensor, x: np.ndarray, block: int, fused: bool
) -> np.ndarray:
    """Return x times a matrix of E4M3 codes, by the rule of native/cpu/float_code_blocks.h.

    Args:
        weight: (N, K); its numbers are multiplied as a bfloat16 matrix is.
        x: (T, K) float32.
        block: Inputs that bfloat16 products add up before they are added to others.
        fused: Whether ``a * b + c`` is rounded once.
    """
    columns = weight.shape[1]
    numbers = (E4M3[weight.codes].view(np.uint32) >> 16).astype(np.uint16)
    scales = replace(weight, row_scales=None).scale_numbers().astype(np.float32)
    borders = {*range(0, columns, block), *range(0, columns, weight.group_size), columns}
    sums = np.zeros((len(x), len(numbers)), np.float32)
    for first, end in pairwise(sorted(borders)):
        part = HostTensor("w", "bfloat16", np.ascontiguousarray(numbers[:, first:end]))
        products = CpuLinear([part], [], "bfloat16")(np.ascontiguousarray(x[:, first:end]))
        sums = add(products, scales[:, first // weight.group_size], sums, fused)
    return over_rows(weight, sums)


def simulate(weight: QuantizedTensor, x: np.ndarray, fused: bool) -> np.ndarray:
    """Return x times the matrix, by the rule of native/cpu/quantized_tile.h.

    Args:
        weight: (N, K).
        x: (T, K) float32.
        fused: Whether ``a * b + c`` is rounded once.
    """
    rows, columns = weight.shape
    together = activation_inputs(weight)
    size = min(weight.group_size, together)
    weights = np.zeros((rows, -(-columns // together) * together), np.int32)
    factor = np.float32(1)
    group_scales = replace(weight, row_scales=None).scale_numbers()
    if weight.tables is not None:
        steps, group_scales = table_steps(weight.tables)
        weights[:, :columns] = np.take_along_axis(steps, weight.codes, axis=1)
    elif weight.code_book is None:
        weights[:, :columns] = weight.codes.astype(np.int32) - weight.zero
    else:
        book, step = integer_code_book(weight.code_book)
        factor = np.float32(step)
        weights[:, :columns] = book[weight.codes]
    if weight.input_order is not None:
        x = x[:, weight.input_order]
    codes, scales = quantize_activations(x, together)
    factors = np.ones((len(x), 1), np.float32)
    if weight.activations is not None:
        rounded = round_rows(weight.activations, x)
        codes[:, :columns], factors = rounded.codes, rounded.factors
        scales = np.ones_like(scales)
        if weight.activations.codes == "e2m1":  # integers, and factors within the sum
            codes[:, :columns], together = 2 * rounded.codes, rounded.group_size
            missing = weights.shape[1] // together - rounded.factors.shape[1]
            scales = np.pad(rounded.factors / 2, ((0, 0), (0, missing)))
            factors = np.ones((len(x), 1), np.float32)

    sums = np.zeros((len(x), rows), np.float32)
    first_half = sums
    for first in range(0, weights.shape[1], size):
        part = slice(first, first + size)
        group = min(first // weight.group_size, weight.scales.shape[1] - 1)
        super_group = first // 256
        dots = (codes[:, part] @ weights[:, part].T).astype(np.float32)
        activation_scale = scales[:, first // together, None]
        weight_scale = group_scales[:, group].astype(np.float32) * factor
        if isinstance(weight, TwoLevelTensor):
            weight_scale *= weight.super_scales[:, super_group].astype(np.float32)
        if size > 16 or together == 16:  # halves of inputs have factors of their own
            sums = add(dots, weight_scale * activation_scale, sums, fused)
        elif first % 32 == 0:
            first_half = dots * weight_scale
        else:
            products = add(dots, weight_scale, first_half, fused)
            sums = add(products, activation_scale, sums, fused)
        if weight.offsets is not None or weight.zeros is not None:
            total = codes[:, part].sum(axis=1, keepdims=True).astype(np.float32)
            if weight.zeros is not None:
                offset = -(weight.zeros[:, group].astype(np.float32) * weight_scale)
            else:
                offset = weight.offsets[:, group].astype(np.float32)
            if isinstance(weight, TwoLevelTensor):
                offset *= weight.super_offsets[:, super_group].astype(np.float32)
            sums = add(np.broadcast_to(offset, sums.shape), activation_scale * total, sums, fused)
    sums = over_rows(weight, sums) * factors
    return sums if weight.outliers is None else sums + outlier_products(weight.outliers, x)


def simulate_whole_rows(weight: QuantizedTensor, x: np.ndarray, fused: bool) -> np.ndarray:
    """Return x times a matrix of bytes with one scale a row, by native/cpu/rounded_rows.h.

    One integer sum an output, then the scale of the weights, the factor of the inputs, and the
    inputs that are not rounded, one after the other.
    """
    assert weight.activations is not None
    rounded = round_rows(weight.activations, x)
    codes = weight.codes.astype(np.int64) - weight.zero
    sums = (rounded.codes.astype(np.int64) @ codes.T).astype(np.float32)
    result: np.ndarray = sums * weight.scales[:, 0].astype(np.float32) * rounded.factors
    values = weight.float32()
    for row, column in np.argwhere(rounded.outliers):
        product = values[:, column].astype(np.float64 if fused else np.float32)
        product = product * x[row, column]
        result[row] = (product + result[row]).astype(np.float32)
    return result


def table_steps(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tables (N, values) as whole steps, int32, and the steps (N, 1) float32."""
    values = tables.astype(np.float32)
    most = np.abs(values).max(axis=1, keepdims=True)
    steps = np.rint(values * (np.float32(127) / most)).astype(np.int32)
    return steps, most / np.float32(127)


def outlier_products(outliers: Outliers, x: np.ndarray) -> np.ndarray:
    """Return what outliers add to products with x (T, K): (T, N) float32, of four sums each."""
    made = np.zeros((len(x), len(outliers.starts) - 1), np.float32)
    for n, (begin, end) in enumerate(zip(outliers.starts, outliers.starts[1:], strict=False)):
        sums = np.zeros((4, len(x)), np.float32)
        for i in range(begin, end):
            sums[(i - begin) % 4] += outliers.values[i] * x[:, outliers.columns[i]]
        made[:, n] = (sums[0] + sums[1]) + (sums[2] + sums[3])
    return made
