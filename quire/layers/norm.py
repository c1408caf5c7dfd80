"""RMSNorm and LayerNorm with their weights; the arithmetic is in the kernels."""

from __future__ import annotations

from typing import Protocol

from quire.kernels.backend import Array, Backend


class Norm(Protocol):
    """A norm over the last dim of (T, D) float32."""

    def __call__(self, x: Array, out: Array) -> Array:
        """Write the norm of ``x`` to ``out``."""
        ...

    def add(self, x: Array, residual: Array, out: Array) -> Array:
        """Add ``x`` to ``residual`` in place, then write its norm to ``out`` (may be ``x``)."""
        ...


class RMSNorm:
    """``x / sqrt(mean(x ** 2) + eps) * weight``, weight (D,) float32."""

    def __init__(self, backend: Backend, weight: Array, eps: float) -> None:
        self._rms_norm, self._add_rms_norm = backend.rms_norm, backend.add_rms_norm
        self._weight, self._eps = weight, eps

    def __call__(self, x: Array, out: Array) -> Array:
        """Write the norm of ``x`` to ``out``."""
        return self._rms_norm(x, self._weight, self._eps, out)

    def add(self, x: Array, residual: Array, out: Array) -> Array:
        """Add ``x`` to ``residual`` in place, then write its norm to ``out`` (may be ``x``)."""
        return self._add_rms_norm(x, residual, self._weight, self._eps, out)


class LayerNorm:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, weight and bias (D,) float32."""

    def __init__(self, backend: Backend, weight: Array, bias: Array, eps: float) -> None:
        self._layer_norm, self._add_layer_norm = backend.layer_norm, backend.add_layer_norm
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: Array, out: Array) -> Array:
        """Write the norm of ``x`` to ``out``."""
        return self._layer_norm(x, self._weight, self._bias, self._eps, out)

    def add(self, x: Array, residual: Array, out: Array) -> Array:
        """Add ``x`` to ``residual`` in place, then write its norm to ``out`` (may be ``x``)."""
        return self._add_layer_norm(x, residual, self._weight, self._bias, self._eps, out)
