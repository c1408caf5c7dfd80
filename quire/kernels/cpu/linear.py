"""Linear layers on the packed native weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.kernels.cpu.native import DTYPE_CODES, native
from quire.kernels.host_tensor import HostTensor
from quire.kernels.linear import check_input, check_weights


class CpuLinear:
    """See ``kernels/linear.py`` for the maths and ``kernels/backend.py`` for the protocol.

    Attributes:
        in_features, out_features: Of the stacked matrices.
        nbytes: Memory of the packed weights and biases.
    """

    def __init__(
        self, weights: Sequence[HostTensor], biases: Sequence[HostTensor], dtype: str
    ) -> None:
        """Pack ``weights`` as ``dtype``, reading each source once.

        Raises:
            UnsupportedInputError: See :func:`quire.kernels.linear.check_weights`.
        """
        self.in_features, self.out_features = check_weights(weights, biases, dtype)
        self._packed = native.PackedLinear(self.in_features, self.out_features, DTYPE_CODES[dtype])
        first_row = 0
        for weight in weights:
            rows = weight.shape[0]
            self._packed.pack(weight.array, DTYPE_CODES[weight.dtype], first_row, rows)
            first_row += rows
        if biases:
            self._packed.set_bias(np.concatenate([bias.float32() for bias in biases]))
        self.nbytes: int = self._packed.nbytes

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Multiply (T, in_features) float32 to (T, out_features) float32, contiguous both."""
        check_input(x, self.in_features)
        if out is None:
            out = np.empty((x.shape[0], self.out_features), np.float32)
        self._packed.multiply(x, x.shape[0], out)
        return out

    def lookup(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return weight rows ``ids`` (T,) int32 as (T, in_features) float32."""
        if out is None:
            out = np.empty((ids.shape[0], self.in_features), np.float32)
        self._packed.lookup(ids, ids.shape[0], out)
        return out
