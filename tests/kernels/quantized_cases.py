"""Quantized matrices for tests, and the integer product simulated in numpy."""

from __future__ import annotations

import numpy as np

from quire.kernels.quantized_tensor import QuantizedTensor, integer_code_book

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


def activation_inputs(weight: QuantizedTensor) -> int:
    """Return how many inputs of a row share a scale once they are rounded."""
    if weight.bits > 4 or weight.super_scales is not None:
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
    if weight.code_book is None:
        weights[:, :columns] = weight.codes.astype(np.int32) - weight.zero
    else:
        book, step = integer_code_book(weight.code_book)
        factor = np.float32(step)
        weights[:, :columns] = book[weight.codes]
    codes, scales = quantize_activations(x, together)

    def add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        # Exact in float64, so one rounding to float32 is left (but for ties of chance 2 ** -29).
        if fused:
            return (a.astype(np.float64) * b + c).astype(np.float32)
        return a * b + c

    sums = np.zeros((len(x), rows), np.float32)
    for first in range(0, weights.shape[1], size):
        part = slice(first, first + size)
        group = min(first // weight.group_size, weight.scales.shape[1] - 1)
        super_group = first // 256
        dots = (codes[:, part] @ weights[:, part].T).astype(np.float32)
        activation_scale = scales[:, first // together, None]
        weight_scale = weight.scales[:, group].astype(np.float32) * factor
        if weight.super_scales is not None:
            weight_scale *= weight.super_scales[:, super_group].astype(np.float32)
        sums = add(dots, weight_scale * activation_scale, sums)
        if weight.offsets is not None:
            total = codes[:, part].sum(axis=1, keepdims=True).astype(np.float32)
            offset = weight.offsets[:, group].astype(np.float32)
            if weight.super_offsets is not None:
                offset *= weight.super_offsets[:, super_group].astype(np.float32)
            sums = add(np.broadcast_to(offset, sums.shape), activation_scale * total, sums)
    return sums
