"""Mixture of experts: a router picks a few MLPs for each row, whose outputs are mixed."""

from __future__ import annotations

from quire.core.model.moe_config import ExpertRouting
from quire.kernels.backend import Array, Backend, Linear, MixedExperts
from quire.layers.workspace import Activations


class SharedExperts:
    """``down(act(gate(x)) * up(x))`` of experts that are always on, added to the others' mix.

    Args:
        backend: The backend that computes.
        gate_up, down: The MLP.
        activation: The MLP's activation.
        gate: Linear to (T, 1), the sigmoid of which weighs each row; None for no weight.
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
        """Write the result for ``step.normed``, which stays as it is, to ``step.shared``.

        Returns:
            The gate's output, or None.
        """
        shares = None if self._gate is None else self._gate(step.normed, None, step.rows)
        self._gate_up(step.normed, step.shared_up, step.rows)
        self._backend.gated_activation(step.shared_up, self._activation, step.shared_activated)
        self._down(step.shared_activated, step.shared, step.rows)
        return shares

    def add(self, step: Activations, shares: Array | None) -> Array:
        """Add ``step.shared``, weighed by what :meth:`compute` returned, to ``step.mixed``."""
        if shares is None:
            return self._backend.add_residual(step.shared, step.mixed)
        return self._backend.add_gated_rows(step.shared, shares, step.mixed)


class MixtureOfExperts:
    """``sum_j weight_j * expert_j(x)`` over the chosen experts of each row, and those always on.

    Args:
        backend: The backend that computes.
        routing: The rule by which experts are chosen.
        router: The linear that computes the experts' logits.
        bias: (E,), added to scores for the choice of experts alone, or None.
        experts: The experts to choose from.
        shared: The experts that are always on, or None.
        weighs_inputs: Whether the weights multiply the experts' inputs, not their outputs; each row
            has one expert then.
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
