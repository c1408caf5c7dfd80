"""An output head whose logits are scaled, or bent towards a cap."""

from __future__ import annotations

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.batch.forward_batch import BatchRows


class ShapedHead:
    """``cap * tanh(scale * head(x) / cap)``; tokens are looked up in the head as it is.

    Args:
        backend: The backend that computes.
        linear: The head, D to V.
        scale: Factor on logits.
        cap: Bound that logits are bent towards; None for no bound.
    """

    def __init__(self, backend: Backend, linear: Linear, scale: float, cap: float | None) -> None:
        self._backend, self._linear, self._scale, self._cap = backend, linear, scale, cap
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes, self.packed = linear.nbytes, linear.packed

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, D) to (T, V)."""
        logits = self._linear(x, out, rows)
        if self._scale != 1:
            self._backend.scale(logits, self._scale, logits)
        if self._cap is not None:
            self._backend.soft_cap(logits, self._cap, logits)
        return logits

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return the head's rows."""
        return self._linear.lookup(ids, out, rows)


def logits_head(backend: Backend, linear: Linear, scale: float, cap: float | None) -> Linear:
    """Return ``linear`` itself where nothing is done to its logits."""
    return linear if scale == 1 and cap is None else ShapedHead(backend, linear, scale, cap)
