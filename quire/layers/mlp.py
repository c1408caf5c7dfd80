"""The feed-forward part of a layer: gated (Llama) or plain (GPT-2)."""

from __future__ import annotations

from typing import Protocol

from quire.kernels.backend import Array, Backend, Linear
from quire.layers.workspace import Activations


class FeedForward(Protocol):
    """The part of a layer after attention, which treats each row alone."""

    def __call__(self, step: Activations) -> Array:
        """Return the result for ``step.normed``, which may be overwritten, as (T, D)."""
        ...


class GatedMLP:
    """``down(act(gate(x)) * up(x))`` with gate and up in one linear."""

    def __init__(self, backend: Backend, gate_up: Linear, down: Linear, activation: str) -> None:
        self._gated_activation, self._activation = backend.gated_activation, activation
        self._gate_up, self._down = gate_up, down

    def __call__(self, step: Activations) -> Array:
        """Replace ``step.normed`` by the result."""
        self._gate_up(step.normed, step.up, step.rows)
        self._gated_activation(step.up, self._activation, step.activated)
        return self._down(step.activated, step.normed, step.rows)


class MLP:
    """``down(act(up(x)))``."""

    def __init__(self, backend: Backend, up: Linear, down: Linear, activation: str) -> None:
        self._activate, self._activation = backend.activation, activation
        self._up, self._down = up, down

    def __call__(self, step: Activations) -> Array:
        """Replace ``step.normed`` by the result."""
        self._up(step.normed, step.up, step.rows)
        self._activate(step.up, self._activation, step.up)
        return self._down(step.up, step.normed, step.rows)
