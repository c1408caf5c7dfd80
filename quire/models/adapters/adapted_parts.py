"""A decoder's parts as they take adapters: each wrapped by what adds them."""

from __future__ import annotations

from collections.abc import Sequence

from quire.kernels.backend import Backend, Experts, Linear
from quire.layers.adapters.adapted_embedding import AdaptedEmbedding
from quire.layers.adapters.adapted_experts import AdaptedExperts
from quire.layers.adapters.adapted_linear import AdaptedLinear
from quire.layers.adapters.adapted_norm import AdaptedNorm
from quire.layers.adapters.adapter_slots import AdapterSlots
from quire.layers.norm import Norm
from quire.models.adapters.places import Places
from quire.models.weight_map import LinearWeights, NormWeights


class AdaptedParts:
    """Wraps parts of a decoder.

    Args:
        backend: The backend that computes.
        places: Places of the decoder; without any, parts stay as they are.

    Attributes:
        slots: Slots of each place, which hold the adapters' changes of it.
    """

    def __init__(self, backend: Backend, places: Places) -> None:
        self._backend = backend
        self._slots = {modules: AdapterSlots(place) for modules, place in places.items()}
        self.slots: Sequence[AdapterSlots] = list(self._slots.values())

    def linear(self, weights: LinearWeights, linear: Linear) -> Linear:
        """Return a linear, or the embedding, that takes adapters."""
        slots = self._slots.get(weights.modules)
        if slots is None:
            return linear
        make = AdaptedEmbedding if slots.place.embeds else AdaptedLinear
        return make(self._backend, linear, slots)

    def experts(
        self, gate_up: Sequence[LinearWeights], down: Sequence[LinearWeights], experts: Experts
    ) -> Experts:
        """Return experts of these matrices that take adapters."""
        if not self._slots:
            return experts
        sides = ([self._slots[linear.modules] for linear in side] for side in (gate_up, down))
        return AdaptedExperts(self._backend, experts, *sides)

    def norm(self, weights: NormWeights, norm: Norm) -> Norm:
        """Return a norm that takes adapters, if it has a bias."""
        slots = self._slots.get((weights.module,))
        return norm if slots is None else AdaptedNorm(self._backend, norm, slots)
