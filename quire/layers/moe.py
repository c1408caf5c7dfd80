"""Mixture of experts: a router picks a few MLPs for each row and mixes what they say."""

from __future__ import annotations

from quire.core.model_config import MoEConfig
from quire.kernels.backend import Array, Backend, Experts, Linear
from quire.layers.workspace import Rows


class MixtureOfExperts:
    """``sum_j weight_j * expert_j(x)`` over the ``top_k`` likeliest experts of each row."""

    def __init__(
        self, backend: Backend, config: MoEConfig, router: Linear, experts: Experts
    ) -> None:
        self._route = backend.route
        self._top_k, self._renormalize = config.top_k, config.renormalize
        self._router, self._experts = router, experts

    def __call__(self, x: Array, rows: Rows) -> Array:
        """Compute in ``rows``; ``x`` stays."""
        self._router(x, rows.routed)
        ids, weights = self._route(rows.routed, self._top_k, self._renormalize)
        return self._experts(x, ids, weights, rows.mixed)
