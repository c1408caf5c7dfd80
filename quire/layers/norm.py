"""RMSNorm and LayerNorm with their weights; the arithmetic is in the kernels."""

from __future__ import annotations

from typing import Protocol

from quire.kernels.backend import Array, Backend
from quire.kernels.batch.forward_batch import BatchRows


class Norm(Protocol):
    """A norm over the last dim of (T, D)."""

    def __call__(
        self, x: Array, out: Array, residual: Array | None = None, rows: BatchRows | None = None
    ) -> Array:
        """Write the norm of ``x``, or of ``residual += x``, to ``out``, which may be ``x``.

        ``rows`` tell which rows of the step those of ``x`` are, as in a linear; a plain norm
        ignores them.
        """
        ...


class RMSNorm:
    """``x / sqrt(mean(x ** 2) + eps) * weight``, weight (D,) float32."""

    def __init__(self, backend: Backend, weight: Array, eps: float) -> None:
        self._rms_norm, self._weight, self._eps = backend.rms_norm, weight, eps

    def __call__(
        self, x: Array, out: Array, residual: Array | None = None, rows: BatchRows | None = None
    ) -> Array:
        """Write the norm of ``x``, or of ``residual += x``, to ``out``."""
        return self._rms_norm(x, self._weight, self._eps, out, residual)


class LayerNorm:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, weight and bias (D,) float32."""

    def __init__(self, backend: Backend, weight: Array, bias: Array, eps: float) -> None:
        self._layer_norm, self._weight, self._bias = backend.layer_norm, weight, bias
        self._eps = eps

    def __call__(
        self, x: Array, out: Array, residual: Array | None = None, rows: BatchRows | None = None
    ) -> Array:
        """Write the norm of ``x``, or of ``residual += x``, to ``out``."""
        return self._layer_norm(x, self._weight, self._bias, self._eps, out, residual)


class CarriedNorm:
    """A norm whose output also replaces its input in the residual: norms after sums (BERT)."""

    def __init__(self, backend: Backend, norm: Norm) -> None:
        self._scale, self._norm = backend.scale, norm

    def __call__(
        self, x: Array, out: Array, residual: Array | None = None, rows: BatchRows | None = None
    ) -> Array:
        """Write the norm of ``x``, or of ``residual + x``, to ``out``, and in place of the sum."""
        self._norm(x, out, residual, rows)
        self._scale(out, 1.0, x if residual is None else residual)
        return out


class Unnormed:
    """A norm that leaves rows as they are, for families without one."""

    def __init__(self, backend: Backend) -> None:
        self._add_residual, self._scale = backend.add_residual, backend.scale

    def __call__(
        self, x: Array, out: Array, residual: Array | None = None, rows: BatchRows | None = None
    ) -> Array:
        """Write ``x``, or ``residual += x``, to ``out``."""
        if residual is None:
            return self._scale(x, 1.0, out)
        self._add_residual(x, residual, out)
        return out
