"""Rounding to the nearest code on one thread, a piece of rows after the other: the oracle."""

from __future__ import annotations

import numpy as np

from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.rounding_schemes import LOWEST_HALF_SCALE, PIECE, RoundingScheme


def plainly_quantized(tensor: HostTensor, scheme: RoundingScheme) -> QuantizedTensor:
    """Return what :func:`quire.quantization.rounding_schemes.quantize` does of finite values."""
    rows, columns = tensor.shape
    size = scheme.columns_per_scale(columns)
    groups = -(-columns // size)
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty((rows, groups), np.float32)
    offsets = None if scheme.symmetric else np.empty((rows, groups), np.float32)
    step = max(1, PIECE // columns)
    for first in range(0, rows, step):
        part = slice(first, first + step)
        values = HostTensor(tensor.name, tensor.dtype, tensor.array[part]).float32()
        if groups * size != columns:
            # Repeating the last column leaves minimum and maximum of its group alone.
            values = np.pad(values, ((0, 0), (0, groups * size - columns)), mode="edge")
        values = values.reshape(len(values), groups, size)
        highest, lowest = values.max(axis=-1), values.min(axis=-1)
        if offsets is None:
            scales[part], rounded = _symmetric(values, highest, lowest, scheme)
        else:
            parts = _asymmetric(values, highest, lowest, scheme.bits)
            scales[part], offsets[part], rounded = parts
        codes[part] = rounded.reshape(len(values), -1)[:, :columns]
    half = all(_fits_half(numbers) for numbers in (scales, offsets) if numbers is not None)
    dtype = np.float16 if half else np.float32
    return QuantizedTensor(
        name=tensor.name,
        bits=scheme.bits,
        group_size=size,
        codes=codes,
        scales=scales.astype(dtype),
        zero=scheme.zero,
        offsets=None if offsets is None else offsets.astype(dtype),
        code_book=scheme.code_book,
    )


def _symmetric(
    values: np.ndarray, highest: np.ndarray, lowest: np.ndarray, scheme: RoundingScheme
) -> tuple[np.ndarray, np.ndarray]:
    furthest = np.where(highest > -lowest, highest, lowest)
    if scheme.code_book is not None:
        scales = _as_stored(np.abs(furthest))
        limits = (scheme.code_book[1:] + scheme.code_book[:-1]) / 2
        codes = np.searchsorted(limits, (values * _inverse(scales)[..., None]).ravel())
        return scales, codes.reshape(values.shape)
    zero = 1 << scheme.bits - 1
    if scheme.bits == 8:
        scales = _as_stored(np.abs(furthest) / np.float32(127))
        low, high = -127, 127
    else:
        scales = _as_stored(furthest / np.float32(-zero))
        low, high = -zero, zero - 1
    scaled = np.rint(values * _inverse(scales)[..., None])
    return scales, np.clip(scaled, low, high) + zero


def _asymmetric(
    values: np.ndarray, highest: np.ndarray, lowest: np.ndarray, bits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets = _as_stored(lowest)
    scales = _as_stored((highest - lowest) / np.float32((1 << bits) - 1))
    scaled = np.rint((values - offsets[..., None]) * _inverse(scales)[..., None])
    return scales, offsets, np.clip(scaled, 0, (1 << bits) - 1)


def _as_stored(scales: np.ndarray) -> np.ndarray:
    if not _fits_half(scales):
        return scales
    return scales.astype(np.float16).astype(np.float32)


def _fits_half(scales: np.ndarray) -> bool:
    magnitudes = np.abs(scales)
    used = magnitudes[magnitudes > 0]
    return not used.size or bool(used.max() < 65504 and used.min() >= LOWEST_HALF_SCALE)


def _inverse(scales: np.ndarray) -> np.ndarray:
    inverse = np.zeros_like(scales)
    np.divide(1, scales, out=inverse, where=scales != 0)
    return inverse
