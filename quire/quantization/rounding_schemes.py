"""Quantize a float matrix by rounding each weight to the nearest code; no calibration.

Symmetric: ``scale = max|w| / 127`` for 8 bits; fewer bits use all codes, the weight of largest
magnitude becoming the lowest: ``scale = -w / 2 ** (bits - 1)``. Asymmetric: codes span the group's
minimum to its maximum. NF4: nearest of 16 quantiles of the normal distribution, times ``max|w|``.
Source of NF4: Dettmers et al. 2023 (QLoRA), appendix E.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor, padded

#: The 16 values of NF4.
NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)

#: Elements whose scales are rounded to float16 together, or none of them.
PIECE = 1 << 17
#: Pieces that a thread quantizes at a time: enough to leave the interpreter to others for long,
#: few enough that temporaries stay in a cache.
PIECES_AT_A_TIME = 4
#: Groups up to this many columns are turned for their extremes: reducing short rows is slow.
LARGEST_TURNED = 128
#: A float16 scale below this has too few bits left.
LOWEST_HALF_SCALE = 2.0**-16


@dataclass(frozen=True, slots=True)
class RoundingScheme:
    """The rule by which a matrix is rounded.

    Attributes:
        bits: 2, 3, 4, 5, 6 or 8.
        group_size: Columns that share a scale; 0 for whole rows.
        symmetric: Whether codes have no offsets.
        code_book: (16,) float32 for 4 bits, in ascending order, largest magnitude 1; or None.
    """

    bits: int
    group_size: int
    symmetric: bool = True
    code_book: np.ndarray | None = None

    def columns_per_scale(self, columns: int) -> int:
        """Return how many columns of a matrix share a scale."""
        return self.group_size or padded(columns)

    def form(self, columns: int) -> QuantizedForm:
        """Return how a matrix with that many columns is held, if its scales fit in float16."""
        return QuantizedForm(
            bits=self.bits,
            group_size=self.columns_per_scale(columns),
            scale_type="float16",
            zero=self.zero,
            has_offsets=not self.symmetric,
            code_book=None if self.code_book is None else tuple(self.code_book.tolist()),
        )

    @property
    def zero(self) -> int:
        """Code of the value 0, the same in all groups; 0 where there is none."""
        return 1 << self.bits - 1 if self.symmetric and self.code_book is None else 0


def create_scheme(name: str, group_size: int | None = None) -> RoundingScheme:
    """Return the scheme of ``int8``, ``int6`` ... ``int2`` or ``nf4``.

    Args:
        name: Name of the scheme as on the command line.
        group_size: Columns that share a scale; None for the default: 32, and 64 for NF4.
    """
    if name == "nf4":
        return RoundingScheme(4, 64 if group_size is None else group_size, code_book=NF4)
    # Two or three bits have no code to spare for symmetry.
    bits = int(name.removeprefix("int"))
    return RoundingScheme(bits, 32 if group_size is None else group_size, symmetric=bits >= 4)


def quantize(tensor: HostTensor, scheme: RoundingScheme, threads: int = 1) -> QuantizedTensor:
    """Round a matrix (N, K).

    Inside the range of a group's codes the error is at most half a step. Threads share out pieces
    of rows, whose size does not depend on them; numpy lets others run while it computes.

    Raises:
        ModelLoadError: A weight is infinite or no number: it would spoil its whole group.
    """
    rows, columns = tensor.shape
    size = scheme.columns_per_scale(columns)
    groups = -(-columns // size)
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty((rows, groups), np.float32)
    offsets = None if scheme.symmetric else np.empty((rows, groups), np.float32)
    rows_together = max(1, PIECE // columns)
    step = PIECES_AT_A_TIME * rows_together

    def round_rows(first: int) -> None:
        part = slice(first, first + step)
        values = HostTensor(tensor.name, tensor.dtype, tensor.array[part]).float32()
        if groups * size != columns:
            # Repeating the last column leaves minimum and maximum of its group alone.
            values = np.pad(values, ((0, 0), (0, groups * size - columns)), mode="edge")
        values = values.reshape(len(values), groups, size)
        highest, lowest = _extremes(values)
        if not (np.isfinite(highest) & np.isfinite(lowest)).all():
            raise ModelLoadError(
                f"[load] {tensor.name} must be finite to be quantized; got infinity or NaN. Keep "
                "it with --quantization-overrides, or repair the checkpoint."
            )
        if offsets is None:
            scales[part], rounded = _symmetric(values, highest, lowest, scheme, rows_together)
        else:
            parts = _asymmetric(values, highest, lowest, scheme.bits, rows_together)
            scales[part], offsets[part], rounded = parts
        codes[part] = rounded.reshape(len(values), -1)[:, :columns]

    with ThreadPoolExecutor(threads, thread_name_prefix="quire-rounding") as pool:
        for _ in pool.map(round_rows, range(0, rows, step)):
            pass
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


def _extremes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the highest and the lowest (N, G) of values (N, G, group)."""
    size = values.shape[-1]
    if size > LARGEST_TURNED:
        return values.max(axis=-1), values.min(axis=-1)
    turned = np.ascontiguousarray(values.reshape(-1, size).T)
    shape = values.shape[:-1]
    return turned.max(axis=0).reshape(shape), turned.min(axis=0).reshape(shape)


def _symmetric(
    values: np.ndarray,
    highest: np.ndarray,
    lowest: np.ndarray,
    scheme: RoundingScheme,
    together: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return scales (N, G) and codes (N, G, group) of values (N, G, group) and their extremes."""
    furthest = np.where(highest > -lowest, highest, lowest)
    if scheme.code_book is not None:
        scales = _as_stored(np.abs(furthest), together)
        return scales, _nearest(values * _inverse(scales)[..., None], scheme.code_book)
    zero = 1 << scheme.bits - 1
    if scheme.bits == 8:
        scales = _as_stored(np.abs(furthest) / np.float32(127), together)
        low, high = -127, 127
    else:
        scales = _as_stored(furthest / np.float32(-zero), together)
        low, high = -zero, zero - 1
    codes = _rounded(values * _inverse(scales)[..., None], low, high)
    codes += zero
    return scales, codes


def _asymmetric(
    values: np.ndarray, highest: np.ndarray, lowest: np.ndarray, bits: int, together: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scales, offsets and codes of values (N, G, group) and their extremes."""
    offsets = _as_stored(lowest, together)
    scales = _as_stored((highest - lowest) / np.float32((1 << bits) - 1), together)
    scaled = values - offsets[..., None]
    scaled *= _inverse(scales)[..., None]
    return scales, offsets, _rounded(scaled, 0, (1 << bits) - 1)


def _rounded(scaled: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the nearest whole numbers from ``low`` to ``high``, in place."""
    np.rint(scaled, out=scaled)
    return np.clip(scaled, low, high, out=scaled)


def _nearest(scaled: np.ndarray, code_book: np.ndarray) -> np.ndarray:
    """Return the codes of the nearest values of an ascending code book, the lower of two."""
    # Of so few limits a look at each takes a sixth of what a search takes.
    codes = np.full(scaled.shape, len(code_book) - 1, np.uint8)
    below = np.empty(scaled.shape, np.bool_)
    for limit in (code_book[1:] + code_book[:-1]) / 2:
        np.less_equal(scaled, limit, out=below)
        codes -= below.view(np.uint8)
    return codes


def _as_stored(scales: np.ndarray, together: int) -> np.ndarray:
    """Return what float16 keeps of scales, where it can, so that codes are chosen for that.

    Args:
        scales: (N, G).
        together: Rows that are rounded, or not, together.
    """
    stored = scales.copy()
    for first in range(0, len(scales), together):
        part = scales[first : first + together]
        if _fits_half(part):
            stored[first : first + together] = part.astype(np.float16)
    return stored


def _fits_half(scales: np.ndarray) -> bool:
    magnitudes = np.abs(scales)
    used = magnitudes[magnitudes > 0]
    return not used.size or bool(used.max() < 65504 and used.min() >= LOWEST_HALF_SCALE)


def _inverse(scales: np.ndarray) -> np.ndarray:
    """Return 1 / scales, 0 where a scale is 0."""
    inverse = np.zeros_like(scales)
    np.divide(1, scales, out=inverse, where=scales != 0)
    return inverse
