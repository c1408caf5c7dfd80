"""Makes the parts of picture encoders of a checkpoint's tensors, and gives their pages back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.checkpoints.tensor_source import TensorSource
from quire.kernels.backend import Backend, Linear
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.models.weight_map import LinearWeights, NormWeights

FloatArray = npt.NDArray[np.float32]


class TensorReader:
    """Takes tensors by name.

    Args:
        tensors: The checkpoint.
        backend: The backend that packs matrices.
        dtype: Type they are held in.
        norm_eps: Epsilon of all norms.
    """

    def __init__(
        self, tensors: TensorSource, backend: Backend, dtype: str, norm_eps: float
    ) -> None:
        self._tensors = tensors
        self._backend, self._dtype = backend, dtype
        self._norm_eps = norm_eps

    def linear(self, weights: LinearWeights) -> Linear:
        """Return a linear of several matrices."""
        matrices = []
        for module in weights.modules:
            tensor = self._tensors.tensor(f"{module}.weight")
            floats = isinstance(tensor, HostTensor)
            matrices.append(tensor if floats else self._copied(f"{module}.weight"))
        names = [f"{module}.bias" for module in weights.modules if weights.bias]
        biases = [self._copied(name) for name in names]
        made = self._backend.linear(matrices, biases, dtype=self._dtype)
        for module in weights.modules:
            self._tensors.release(f"{module}.weight")
        return made

    def matrix(self, name: str, values: FloatArray, bias: str | None = None) -> Linear:
        """Return a linear of values that were made of a tensor, and of a stored bias."""
        tensor = HostTensor(name, "float32", np.ascontiguousarray(values))
        biases = [] if bias is None else [self._copied(bias)]
        return self._backend.linear([tensor], biases, dtype=self._dtype)

    def norm(self, weights: NormWeights, offset: float = 0.0) -> Norm:
        """Return a LayerNorm, or an RMSNorm where there is no bias; ``offset`` is added to it."""
        (name, _), *bias = weights.shapes()
        values = HostTensor(name, "float32", self.floats(name) + np.float32(offset))
        weight = self._backend.parameter(values)
        if not bias:
            return RMSNorm(self._backend, weight, self._norm_eps)
        shift = self._backend.parameter(self._copied(bias[0][0]))
        return LayerNorm(self._backend, weight, shift, self._norm_eps)

    def floats(self, name: str) -> FloatArray:
        """Return a tensor's values, a copy of our own, so that the file need not stay mapped."""
        values: FloatArray = np.array(self._tensors.tensor(name).float32(), np.float32)
        self._tensors.release(name)
        return values

    def _copied(self, name: str) -> HostTensor:
        return HostTensor(name, "float32", self.floats(name))
