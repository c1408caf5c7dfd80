"""The experts of one layer out of their tensors: as one object, or each product by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quire.kernels.backend import Backend, Experts, GroupedLinear, MixedExperts, Weight
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.parallel.own_experts import Packed
from quire.models.adapters.adapted_parts import AdaptedParts
from quire.models.weight_map import LinearWeights, MLPWeights

#: Yields the matrices of linears in turn, or what is packed of them.
Matrices = Callable[
    [Iterable[LinearWeights], Iterable[Sequence[Weight] | None]], Iterator[Sequence[Weight]]
]


@dataclass(frozen=True, slots=True)
class ExpertMaker:
    """Makes experts.

    Attributes:
        backend: The backend that packs them.
        adapted: Parts that wrap what takes adapters.
        mlps: MLPs of the layer that a rank may have.
        activation: Activation of these MLPs.
        dtype, exact_activations: The same as in :meth:`~quire.kernels.backend.Backend.experts`.
        matrices, biases: Functions that read tensors.
    """

    backend: Backend
    adapted: AdaptedParts
    mlps: Sequence[MLPWeights]
    activation: str
    dtype: str | None
    exact_activations: bool
    matrices: Matrices
    biases: Callable[[LinearWeights], Sequence[HostTensor]]

    def stack(self, numbers: Sequence[int], packed: Packed) -> MixedExperts:
        """Return some experts, of which some may be packed."""
        gate_up, down = self._sides(numbers)
        held = [packed.get(number) for number in numbers]
        experts = self.backend.experts(
            self.matrices(gate_up, [own and own[0] for own in held]),
            self.matrices(down, [own and own[1] for own in held]),
            self.activation,
            dtype=self.dtype,
            exact_activations=self.exact_activations,
            biases=map(self.biases, (*gate_up, *down)),
        )
        return self.adapted.experts(gate_up, down, experts)

    def products(self) -> tuple[GroupedLinear, GroupedLinear]:
        """Return gate and up of all experts, and down."""
        gate_up, down = (
            self.backend.grouped_linear(
                self.matrices(side, [None] * len(side)),
                dtype=self.dtype,
                exact_activations=self.exact_activations,
                biases=map(self.biases, side),
            )
            for side in self._sides(range(len(self.mlps)))
        )
        return gate_up, down

    def with_adapters(self, experts: Experts) -> MixedExperts:
        """Return experts that were made of :meth:`products` as they take adapters."""
        return self.adapted.experts(*self._sides(range(len(self.mlps))), experts)

    def linears(self, numbers: Sequence[int]) -> list[LinearWeights]:
        """Return the linears of some experts in the order of what is packed."""
        gate_up, down = self._sides(numbers)
        return [*gate_up, *down]

    def _sides(self, numbers: Sequence[int]) -> tuple[list[LinearWeights], list[LinearWeights]]:
        mlps = [self.mlps[number] for number in numbers]
        return [mlp.gate_up for mlp in mlps], [mlp.down for mlp in mlps]
