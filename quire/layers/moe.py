"""Mixture of experts: a router picks a few MLPs for each row, whose outputs are mixed."""

from __future__ import annotations

from quire.core.moe_config import ExpertRouting
from quire.kernels.backend import Array, Backend, Linear, MixedExperts
from quire.layers.workspace import Activations


class SharedExperts:
    """``down(act(gate(x)) * up(x))`` of experts that are always on, added to the others' mix.

    Args:
        backend: Computes.
        gate_up, down: The MLP.
        activation: Its activation.
        gate: Weighs each row by the sigmoid of its output (T, 1); None for no weight.
    """

    def __init__(
        self,
        backend: Backend,
        gate_up: Linear,
        down: Linear,
        activation: str,
        gate: Linear | None = None,
    ) -> None:
        self._backend, self._activation = backend, activation
        self._gate_up, self._down, self._gate = gate_up, down, gate

    def compute(self, step: Activations) -> Array | None:
        """Write the result for ``step.normed``, which stays, to ``step.shared``.

        Returns:
            The gate's output, or None.
        """
        shares = None if self._gate is None else self._gate(step.normed, None, step.rows)
        self._gate_up(step.normed, step.shared_up, step.rows)
        self._backend.gated_activation(step.shared_up, self._activation, step.shared_activated)
        self._down(step.shared_activated, step.shared, step.rows)
        return shares

    def add(self, step: Activations, shares: Array | None) -> Array:
        """Add what was computed, given what that returned, to ``step.mixed``."""
        if shares is None:
            return self._backend.add_residual(step.shared, step.mixed)
        return self._backend.add_gated_rows(step.shared, shares, step.mixed)


class MixtureOfExperts:
    """``sum_j weight_j * expert_j(x)`` over the chosen experts of each row, and those always on.

    Args:
        backend: Computes.
        routing: How experts are chosen.
        router: Gives their logits.
        bias: (E,), added to scores where experts are chosen, or None.
        experts: What is chosen from.
        shared: Those always on, or None.
        weighs_inputs: Weights, of one expert for each row, multiply what it is given.
    """

    def __init__(
        self,
        backend: Backend,
        routing: ExpertRouting,
        router: Linear,
        bias: Array | None,
        experts: MixedExperts,
        shared: SharedExperts | None = None,
        weighs_inputs: bool = False,
    ) -> None:
        self._weigh = backend.scale_rows if weighs_inputs else None
        self._route, self._routing, self._bias = backend.route, routing, bias
        self._router, self._experts, self._shared = router, experts, shared

    def __call__(self, step: Activations) -> Array:
        """Return the result in ``step.mixed``."""
        self._router(step.normed, step.routed, step.rows)
        ids, weights = self._route(step.routed, self._routing, self._bias)
        # Before the mix, which lies where the MLP's middle does, and before inputs are weighed.
        shares = None if self._shared is None else self._shared.compute(step)
        if self._weigh is not None:
            self._weigh(step.normed, weights, step.normed)
            weights = weights**0
        self._experts(step.normed, ids, weights, step.mixed, step.rows)
        return step.mixed if self._shared is None else self._shared.add(step, shares)
