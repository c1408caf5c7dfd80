"""The residual stream of a step where it enters chosen layers, which EAGLE-3 heads read.

T tokens of the step, C captured layers, D model dim.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array, Backend


class ResidualCapture:
    """The residual stream of all rows of the last step, at the entry of some layers.

    The input of layer ``i`` is the embedding plus the sums of layers ``0 .. i - 1``, before any
    norm: the auxiliary hidden state of layer id ``i`` of EAGLE-3 heads.

    Args:
        backend: The backend that keeps the rows, in its ``activation_dtype``.
        layers: Indices of the layers, ascending; the columns of :attr:`states` are in this order.
        hidden_size: D.
        num_layers: Layers of the decoder.

    Raises:
        UnsupportedInputError: ``layers`` is empty, not ascending, or not of the decoder.

    Source: Li et al. 2025 (EAGLE-3).
    """

    def __init__(
        self, backend: Backend, layers: Sequence[int], hidden_size: int, num_layers: int
    ) -> None:
        self.layers = tuple(layers)
        inside = self.layers and self.layers[0] >= 0 and self.layers[-1] < num_layers
        if not inside or list(self.layers) != sorted(set(self.layers)):
            raise UnsupportedInputError(
                f"[capture] layers must be ascending indices in [0, {num_layers}); "
                f"got {list(layers)}."
            )
        self._backend = backend
        self._columns = {layer: column for column, layer in enumerate(self.layers)}
        self._hidden_size = hidden_size
        self._num_rows = 0
        self.reserve(1)

    def reserve(self, max_tokens: int) -> None:
        """Allocate for steps of up to ``max_tokens`` rows; a larger step reserves again."""
        shape = (max_tokens, len(self.layers), self._hidden_size)
        self._rows = self._backend.empty(shape, self._backend.activation_dtype)

    @property
    def states(self) -> Array:
        """(T, C D), the last step's rows; the next step overwrites them."""
        rows = self._rows[: self._num_rows]
        return rows.reshape(self._num_rows, len(self.layers) * self._hidden_size)

    def keep(self, layer: int, residual: Array) -> None:
        """Keep (T, D) ``residual``, which enters ``layer``, if that is one of the layers."""
        column = self._columns.get(layer)
        if column is None:
            return
        self._num_rows = residual.shape[0]
        if self._rows.shape[0] < self._num_rows:
            self.reserve(self._num_rows)
        self._rows[: self._num_rows, column] = residual
