"""A format of matrices whose inputs are rounded, too, as the checkpoint says.

```
input_scale         () or (1,)   the stored factor, where inputs have one for all; modelopt's of
                                 E2M1: what groups' factors are times
input_zero_point    () or (1,)   the code of 0 with it
input_global_scale  () or (1,)   of E2M1: what groups' factors are over
```
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quire.checkpoints.formats.stored_matrix import FLOATS, StoredMatrix, WeightFormat
from quire.kernels.matrices.activation_scheme import ActivationScheme
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor

#: Scales beyond overflow products.
LARGEST_SCALE = 1e30


@dataclass(frozen=True, slots=True)
class RoundedInputs:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        weights: The format of the matrix itself.
        scheme: The rule, without what is stored with each matrix.
        stored: The part with each matrix's own scale, with zeros next to ``input_zero_point``;
            empty where there is none.
        inverted: Whether 1 over the rule's scale is stored.
        optional: Whether inputs of a matrix without that part are left as they are.
    """

    weights: WeightFormat
    scheme: ActivationScheme
    stored: str = ""
    inverted: bool = False
    optional: bool = False

    @property
    def marker(self) -> str:
        """The part that only a quantized matrix has."""
        return self.weights.marker

    @property
    def parts(self) -> frozenset[str]:
        """All parts that it may have."""
        return self.weights.parts

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        return self.weights.shape(matrix)

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held; the numbers of inputs are read."""
        return replace(self.weights.form(matrix), activations=self._rule(matrix))

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        made = self.weights.unpack(matrix)
        assert isinstance(made, QuantizedTensor), matrix.name
        return replace(made, activations=self._rule(matrix))

    def _rule(self, matrix: StoredMatrix) -> ActivationScheme | None:
        if not self.stored:
            return self.scheme
        if self.optional and self.stored not in matrix.parts:
            return None
        scale = _number(matrix, self.stored, *FLOATS)
        least = 1 / LARGEST_SCALE if self.inverted else 0
        if not least < scale <= LARGEST_SCALE:
            rule = f"{self.stored} must be > {least:g} and at most {LARGEST_SCALE:g}"
            raise matrix.error(rule, scale)
        if self.inverted:
            scale = float(np.float32(1) / np.float32(scale))
        zero = 0
        if self.scheme.has_zeros:
            zero = int(_number(matrix, "input_zero_point", "I8"))
        return replace(self.scheme, scale=float(np.float32(scale)), zero=zero)


def _number(matrix: StoredMatrix, name: str, *dtypes: str) -> float:
    shape = () if matrix.part(name, *dtypes).shape == () else (1,)
    return float(matrix.array(name, shape, *dtypes).item())
