"""Weights in memory by what they are, so that another decoder of the checkpoint shares them."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.kernels.backend import Array, Linear
from quire.kernels.matrices.quantized_tensor import QuantizedForm
from quire.kernels.packed_weights import PackedWeights

#: Names of matrices that are one linear, how each is rounded at load (None: not at all), and
#: whether activations are not.
LinearKey = tuple[tuple[str, ...], tuple[QuantizedForm | None, ...], tuple[bool, str]]
#: Cosines and sines.
RopeTables = tuple[Array, Array]


@dataclass(slots=True)
class SharedWeights:
    """Weights that a decoder was made of; empty where there is no other decoder.

    Attributes:
        linears: Linears by what they hold.
        parameters: Norms and learned positions, by the names of their tensors.
        ropes: Tables of the model's rotary embeddings.
        embedding: Embedding looked up by token id; also among ``linears``.
        packed: Weights packed for it, experts included; empty where nothing is packed.
        fine_inputs: Whether inputs of its quantized matrices are int16, as the model is small.
    """

    linears: dict[LinearKey, Linear] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)
    ropes: tuple[RopeTables, ...] = ()
    embedding: Linear | None = None
    packed: list[PackedWeights] = field(default_factory=list)
    fine_inputs: bool = False
