"""The feed-forward part of a layer: gated (Llama) or plain (GPT-2)."""

from __future__ import annotations

from typing import Protocol

from quire.kernels.backend import Array, Backend, Linear
from quire.layers.workspace import Rows


class FeedForward(Protocol):
    """What a layer does to each row after attention."""

    def __call__(self, x: Array, rows: Rows) -> Array:
        """Return the result for ``x`` (T, D), which may overwrite it, as (T, D) in ``rows``."""
        ...


class GatedMLP:
    """``down(act(gate(x)) * up(x))`` with gate and up in one linear."""

    def __init__(self, backend: Backend, gate_up: Linear, down: Linear, activation: str) -> None:
        self._gated_activation, self._activation = backend.gated_activation, activation
        self._gate_up, self._down = gate_up, down

    def __call__(self, x: Array, rows: Rows) -> Array:
        """Compute in ``rows``; the result replaces ``x``."""
        self._gate_up(x, rows.up)
        self._gated_activation(rows.up, self._activation, rows.activated)
        return self._down(rows.activated, x)


class MLP:
    """``down(act(up(x)))``."""

    def __init__(self, backend: Backend, up: Linear, down: Linear, activation: str) -> None:
        self._activate, self._activation = backend.activation, activation
        self._up, self._down = up, down

    def __call__(self, x: Array, rows: Rows) -> Array:
        """Compute in ``rows``; the result replaces ``x``."""
        self._up(x, rows.up)
        self._activate(rows.up, self._activation, rows.up)
        return self._down(rows.up, x)
