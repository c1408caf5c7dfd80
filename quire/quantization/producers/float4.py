"""Floats of 4 bits, E2M1, times scales of groups: NVFP4 and MXFP4.

```
NVFP4   groups of 16   value = E2M1[code] * (E4M3[scale] / global)
MXFP4   groups of 32   value = E2M1[code] * 2 ** (scale - 127)
```
Of a few neighbouring scales each group gets the one with the smallest sum of squared errors.
N rows, K columns, G groups. Source: OCP Microscaling Formats (MX) 1.0; NVIDIA (NVFP4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.small_floats import E2M1, E4M3, E8M0
from quire.quantization.producers.finite_weights import check_finite
from quire.quantization.producers.float8 import LARGEST as LARGEST_SCALE
from quire.quantization.producers.float8 import e4m3_codes

LARGEST = np.float32(6)
NV_GROUP, MX_GROUP = 16, 32
#: Codes next to the scale that makes the largest weight 6: up to where it is about 4.
NV_STEPS, MX_STEPS = range(-2, 6), range(-1, 2)
HIGHEST_E4M3, HIGHEST_E8M0 = 126, 254


def e2m1_codes(values: np.ndarray) -> np.ndarray:
    """Return the nearest codes, uint8, of finite float32 values, half to even; 6 beyond 6."""
    sizes = np.minimum(np.abs(values), LARGEST)
    bits = sizes.view(np.uint32)
    nearest = bits + np.uint32(0x1FFFFF) + (bits >> np.uint32(22) & np.uint32(1))
    normal = (nearest >> np.uint32(22)) - np.uint32((127 - 1) << 1)
    small = np.rint(sizes * 2).astype(np.uint32)
    codes: np.ndarray = np.where(sizes < 1, small, normal).astype(np.uint8)
    codes |= np.signbit(values).astype(np.uint8) << np.uint8(3)
    return codes


def global_factor(weights: Sequence[np.ndarray]) -> np.float32:
    """Return what scales of matrices that are computed as one are over: the largest is then 448."""
    largest = max(float(np.abs(weight).max()) for weight in weights)
    return np.float32(LARGEST_SCALE * LARGEST / largest) if largest > 0 else np.float32(1)


def quantize_nvfp4(name: str, weight: np.ndarray, factor: np.float32) -> QuantizedTensor:
    """Round a matrix to NVFP4.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32, K a multiple of 16.
        factor: Factor that scales are divided by, the result of :func:`global_factor`.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    groups = _groups(name, weight, NV_GROUP)
    first = e4m3_codes(np.abs(groups).max(axis=2) / LARGEST * factor)
    tried = [np.clip(first.astype(np.int16) + s, 1, HIGHEST_E4M3) for s in NV_STEPS]
    numbers = E4M3 / factor
    codes, scales = _best(groups, [step.astype(np.uint8) for step in tried], numbers)
    return QuantizedTensor(
        name=name,
        bits=4,
        group_size=NV_GROUP,
        codes=codes.reshape(weight.shape),
        scales=scales,
        code_book=E2M1,
        scale_type="e4m3",
        row_scales=np.full(len(weight), factor, np.float32),
        over_rows=True,
    )


def quantize_mxfp4(name: str, weight: np.ndarray) -> QuantizedTensor:
    """Round a matrix to MXFP4.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32, K a multiple of 32.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    groups = _groups(name, weight, MX_GROUP)
    # Of a number from 2 ** (e - 1) on frexp says e; the largest code has the exponent 2.
    exponents = np.frexp(np.abs(groups).max(axis=2))[1] - 1 - 2
    tried = [np.clip(exponents + 127 + s, 0, HIGHEST_E8M0).astype(np.uint8) for s in MX_STEPS]
    codes, scales = _best(groups, tried, E8M0)
    return QuantizedTensor(
        name=name,
        bits=4,
        group_size=MX_GROUP,
        codes=codes.reshape(weight.shape),
        scales=scales,
        code_book=E2M1,
        scale_type="e8m0",
    )


def _groups(name: str, weight: np.ndarray, size: int) -> np.ndarray:
    check_finite(name, weight)
    return np.ascontiguousarray(weight).reshape(len(weight), -1, size)


def _best(
    groups: np.ndarray, tried: Sequence[np.ndarray], numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (N, G, size) and the scales (N, G) of smallest error; ties go to the first."""
    least = np.full(groups.shape[:2], np.inf, np.float32)
    codes, scales = np.zeros(groups.shape, np.uint8), tried[0].copy()
    for scale in tried:
        steps = numbers[scale][:, :, None]
        found = e2m1_codes(groups / steps)
        error = np.square(E2M1[found] * steps - groups).sum(axis=2)
        better = error < least
        least[better], scales[better], codes[better] = error[better], scale[better], found[better]
    return codes, scales
