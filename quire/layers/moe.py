"""Mixture of experts: a router picks a few MLPs for each row, whose outputs are mixed."""

from __future__ import annotations

from quire.core.model_config import MoEConfig
from quire.kernels.backend import Array, Backend, Experts, Linear
from quire.layers.workspace import Activations


class MixtureOfExperts:
    """``sum_j weight_j * expert_j(x)`` over the ``top_k`` likeliest experts of each row."""

    def __init__(
        self, backend: Backend, config: MoEConfig, router: Linear, experts: Experts
    ) -> None:
        self._route = backend.route
        self._top_k, self._renormalize = config.top_k, config.renormalize
        self._router, self._experts = router, experts

    def __call__(self, step: Activations) -> Array:
        """Return the result in ``step.mixed``; ``step.normed`` stays."""
        self._router(step.normed, step.routed, step.rows)
        ids, weights = self._route(step.routed, self._top_k, self._renormalize)
        return self._experts(step.normed, ids, weights, step.mixed)
