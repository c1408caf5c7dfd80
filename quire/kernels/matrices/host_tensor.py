"""A checkpoint tensor as raw bytes with a type name; numpy has no bfloat16, so we name it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUMPY_DTYPES: dict[str, npt.DTypeLike] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor in host memory, usually a view of a memory-mapped file.

    Attributes:
        name: The checkpoint's name, for messages.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        array: C-contiguous; element type ``NUMPY_DTYPES[dtype]`` (bfloat16 as its 16 bits).
    """

    name: str
    dtype: str
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, row-major."""
        return self.array.shape

    def float32(self) -> np.ndarray:
        """Return the values as a new (or the same, if already) float32 array."""
        if self.dtype == "bfloat16":
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        return self.array.astype(np.float32, copy=False)
