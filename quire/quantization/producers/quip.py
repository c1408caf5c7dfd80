"""QuIP#: rotate a matrix so that its elements are alike, then round eight columns at a time to E8P.

Minimises ``|W X - Q X|`` over the calibration inputs X as GPTQ does, vector by vector: columns are
taken from the last to the first, and what is rounded is moved by the errors that were made so far.
Source: Tseng et al. 2024 (QuIP#): sections 3 (rotation), 4 (block LDLQ, E8P, residual stages).
N rows, K columns.
"""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.lattice_codes import SIZE
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.rotation import hartley_matrix, odd_part, rotate
from quire.quantization.producers.damped_factor import damped_factor
from quire.quantization.producers.lattice_search import nearest_codes

#: Square roots of the mean squares of what is rounded, in the units of the codes: the error of a
#: normal distribution is smallest there.
BEST_SIZE = 1.03
#: Scales of the stages by the bits of a weight: what a stage leaves over is that much smaller.
STAGE_SCALES = {2: (1.0,), 4: (1.0, 1 / 3.45)}
#: Columns whose errors reach the columns before them together.
BLOCK = 128
#: Rows that are rounded together: results do not depend on how many threads take them.
ROWS = 512


@dataclass(frozen=True, slots=True)
class RotatedInputs:
    """The rotation of inputs that several matrices share.

    Attributes:
        factors: (K,) float32, signs.
        matrix: The rotation's matrix.
        reach: (K, K) float32, block lower triangular: factors by which errors of the columns after
            a vector change it; None where no inputs were seen.
    """

    factors: np.ndarray
    matrix: np.ndarray
    reach: np.ndarray | None


def rotate_inputs(
    name: str, columns: int, products: np.ndarray | None, damping: float
) -> RotatedInputs:
    """Choose the rotation of inputs, and factor the sums of their products.

    Args:
        name: The name that decides the signs; also for messages.
        columns: K.
        products: (K, K), sums of products of inputs; None where none were seen.
        damping: Share of the mean of the sums' diagonal that is added to the diagonal.

    Raises:
        ModelLoadError: A sum is infinite or NaN.
    """
    factors, matrix = _signs(f"{name} inputs", columns), hartley_matrix(odd_part(columns))
    if products is None:
        return RotatedInputs(factors, matrix, None)
    if not np.isfinite(products).all():
        raise ModelLoadError(
            f"[quantize] {name}: sums of inputs must be finite; got infinity or NaN. Look at the "
            "calibration text."
        )
    back = matrix.T.astype(np.float64)
    sums = products.astype(np.float64) * factors * factors[:, None]
    sums = rotate(np.ascontiguousarray(rotate(sums, back).T), back)
    return RotatedInputs(factors, matrix, _block_reach(sums, damping))


def quantize_quip(
    name: str, weight: np.ndarray, inputs: RotatedInputs, bits: int, threads: int = 1
) -> LatticeMatrix:
    """Round a matrix.

    Args:
        name: The matrix's name, which decides the signs of outputs; also for messages.
        weight: (N, K) float32; K is a multiple of 8.
        inputs: The rotation of inputs that the matrix shares with others.
        bits: Bits of a weight, one of :data:`STAGE_SCALES`.
        threads: Number of threads that share the rows.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    if not np.isfinite(weight).all():
        raise ModelLoadError(
            f"[quantize] {name}: weights must be finite; got infinity or NaN. Look at the "
            "checkpoint."
        )
    rows, columns = weight.shape
    outputs, output_matrix = _signs(f"{name} outputs", rows), hartley_matrix(odd_part(rows))
    turned = rotate(weight * inputs.factors, inputs.matrix.T)
    turned = rotate(np.ascontiguousarray(turned.T) * outputs, output_matrix.T)
    turned = np.ascontiguousarray(turned.T)
    size = np.float32(max(float(np.sqrt(np.square(turned).mean())) / BEST_SIZE, 1e-30))
    turned /= size
    scales = np.array(STAGE_SCALES[bits], np.float32)
    chunks = [turned[begin : begin + ROWS] for begin in range(0, rows, ROWS)]
    with ThreadPoolExecutor(max(1, min(threads, len(chunks)))) as pool:
        parts = list(pool.map(lambda chunk: _round_rows(chunk, inputs.reach, scales), chunks))
    return LatticeMatrix(
        name=name,
        codes=np.concatenate(parts, axis=1),
        stage_scales=scales,
        row_scales=np.full(rows, size, np.float32),
        input_factors=inputs.factors,
        output_factors=outputs,
        input_matrix=inputs.matrix,
        output_matrix=output_matrix,
    )


def _round_rows(weight: np.ndarray, reach: np.ndarray | None, scales: np.ndarray) -> np.ndarray:
    """Return codes (stages, N, K / 8) uint16 of rows (N, K)."""
    rows, columns = weight.shape
    codes = np.empty((len(scales), rows, columns // SIZE), np.uint16)
    if reach is None:
        made, _ = _nearest(weight.reshape(-1, SIZE), scales)
        return made.reshape(codes.shape)
    errors = np.zeros((rows, columns), np.float32)
    for end in range(columns, 0, -BLOCK):
        begin = max(0, end - BLOCK)
        wanted = weight[:, begin:end] + errors[:, end:] @ reach[end:, begin:end]
        for last in range(end, begin, -SIZE):
            first = last - SIZE
            vectors = wanted[:, first - begin : last - begin]
            vectors = vectors + errors[:, last:end] @ reach[last:end, first:last]
            codes[:, :, first // SIZE], made = _nearest(np.ascontiguousarray(vectors), scales)
            errors[:, first:last] = weight[:, first:last] - made
    return codes


def _nearest(vectors: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (stages, n) uint16 of vectors (n, 8), and what they stand for, (n, 8) float32.

    A stage rounds what those before it leave over.
    """
    codes = np.empty((len(scales), len(vectors)), np.uint16)
    made = np.zeros_like(vectors)
    for stage, scale in enumerate(scales):
        codes[stage], values = nearest_codes((vectors - made) / scale)
        made += values * scale
    return codes, made


def _block_reach(sums: np.ndarray, damping: float) -> np.ndarray:
    """Return L of ``sums = L D L.T``, D block diagonal: (K, K) float32."""
    lower = damped_factor(sums, damping)
    for first in range(0, len(lower), SIZE):
        block = slice(first, first + SIZE)
        lower[:, block] = lower[:, block] @ np.linalg.inv(lower[block, block])
    return lower.astype(np.float32)


def _signs(name: str, count: int) -> np.ndarray:
    """Return 1 and -1, by a name and nothing else, (count,) float32."""
    random = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return (random.integers(0, 2, count) * 2 - 1).astype(np.float32)
