"""Which of a decoder's linears an adapter is added to, in the kernels' order.

R rank, D model dim, V vocabulary, O outputs of a linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from quire.kernels.backend import Backend, Linear
from quire.kernels.host_tensor import HostTensor
from quire.kernels.low_rank import LowRankPart
from quire.layers.adapted_embedding import AdaptedEmbedding, EmbeddingChange
from quire.layers.adapted_linear import AdaptedLinear, AdapterPlace, LinearChange
from quire.models.adapters.base_weights import BaseWeights, Floats
from quire.models.adapters.matching import AdapterParts, find_parts
from quire.models.adapters.peft_folder import PeftAdapter

Part = TypeVar("Part")
#: What adapters may be added to; each takes its own kind of change.
Adapted = AdaptedLinear | AdaptedEmbedding


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """An adapter on a backend.

    Attributes:
        parts: The linears it is added to, each with what it makes of it.
        nbytes: Memory of its matrices.
    """

    parts: Sequence[tuple[Adapted, LinearChange | EmbeddingChange]]
    nbytes: int

    def set(self, slot: int) -> None:
        """Have rows of a slot get the adapter, from the next step on."""
        for linear, change in self.parts:
            if isinstance(linear, AdaptedEmbedding):
                assert isinstance(change, EmbeddingChange), change
                linear.set(slot, change)
            else:
                assert isinstance(change, LinearChange), change
                linear.set(slot, change)

    def clear(self, slot: int) -> None:
        """Have rows of a slot get nothing."""
        for linear, _ in self.parts:
            linear.clear(slot)


def place_adapter(
    adapter: PeftAdapter, linears: Sequence[Adapted], backend: Backend, base: BaseWeights
) -> PlacedAdapter:
    """Copy an adapter's matrices to where a decoder's linears find them.

    Raises:
        ModelLoadError: As of :func:`~quire.models.adapters.matching.check_adapter`.
    """
    found = find_parts(adapter, [linear.place for linear in linears])
    placed = list[tuple[Adapted, LinearChange | EmbeddingChange]]()
    for linear in linears:
        own = AdapterParts(*(_of_place(part, linear.place) for part in found))
        if not own.matrices and not own.biases and not own.whole:
            continue
        if isinstance(linear, AdaptedEmbedding):
            placed.append((linear, _embedding_change(own, linear.place, backend)))
        else:
            placed.append((linear, _linear_change(own, linear, backend, base)))
    return PlacedAdapter(placed, sum(change.nbytes for _, change in placed))


def largest_adapter_bytes(places: Sequence[AdapterPlace], max_rank: int) -> int:
    """Return the memory of an adapter of all linears, in float32, of a rank."""
    elements = 0
    for place in places:
        # Kernels round ranks and outputs up.
        rank = -(-max_rank * len(place.rows) // 4) * 4
        elements += rank * place.columns
        elements += sum(max_rank * -(-rows // 64) * 64 for rows in place.rows)
        elements += 2 * sum(place.rows)
    return 4 * elements


def _of_place(parts: dict[str, Part], place: AdapterPlace) -> dict[str, Part]:
    return {module: parts[module] for module in place.modules if module in parts}


def _linear_change(
    own: AdapterParts, linear: AdaptedLinear, backend: Backend, base: BaseWeights
) -> LinearChange:
    place = linear.place
    parts = _of_one_type(_low_rank_parts(own, place))
    low_rank = None
    if parts:
        low_rank = backend.low_rank(parts, linear.in_features, linear.out_features)
    nbytes = 0 if low_rank is None else low_rank.nbytes
    factors = shifts = whole = None
    if own.biases or any(part.magnitudes is not None for part in own.matrices.values()):
        made = _factors_and_shifts(own, parts, place, base)
        factors, shifts = (backend.from_numpy(values) for values in made)
        nbytes += sum(values.nbytes for values in made)
    if own.whole:
        whole = _whole(own, backend)
        nbytes += whole.nbytes
    return LinearChange(low_rank, factors, shifts, whole, nbytes)


def _low_rank_parts(own: AdapterParts, place: AdapterPlace) -> list[LowRankPart]:
    parts, first = list[LowRankPart](), 0
    for module, rows, order in zip(place.modules, place.rows, place.orders, strict=True):
        found = own.matrices.get(module)
        if found is not None:
            up = found.up if order is None else _in_order(found.up, order)
            parts.append(LowRankPart(first, found.down, up, found.scale))
        first += rows
    return parts


def _factors_and_shifts(
    own: AdapterParts, parts: Sequence[LowRankPart], place: AdapterPlace, base: BaseWeights
) -> tuple[Floats, Floats]:
    """Return both (O,): DoRA's magnitudes over norms, and what makes the biases the adapter's."""
    outputs = sum(place.rows)
    factors, magnitudes = np.ones((2, outputs), np.float32)
    biases = base.biases(place)
    own_biases, is_scaled, first = biases.copy(), np.zeros(outputs, np.bool_), 0
    for module, rows, order in zip(place.modules, place.rows, place.orders, strict=True):
        stored = slice(None) if order is None else order
        found = own.matrices.get(module)
        if module in own.biases:
            own_biases[first : first + rows] = own.biases[module].float32()[stored]
        if found is not None and found.magnitudes is not None:
            magnitudes[first : first + rows] = found.magnitudes.float32()[stored]
            is_scaled[first : first + rows] = True
        first += rows
    if is_scaled.any():
        added: list[tuple[int, Floats, Floats]] = [
            (part.first_output, np.float32(part.scale) * part.up.float32(), part.down.float32())
            for part in parts
        ]
        norms = base.norms(place, added)
        factors[is_scaled] = magnitudes[is_scaled] / norms[is_scaled]
    return factors, own_biases - factors * biases


def _embedding_change(own: AdapterParts, place: AdapterPlace, backend: Backend) -> EmbeddingChange:
    whole = _whole(own, backend) if own.whole else None
    table = low_rank = None
    nbytes = 0 if whole is None else whole.nbytes
    for found in own.matrices.values():
        rank = found.down.shape[0]
        # A copy: the mapped file may change, and a row of it is read in one piece.
        table = replace(found.down, array=np.ascontiguousarray(found.down.array.T))
        unit = HostTensor(found.down.name, "float32", np.eye(rank, dtype=np.float32))
        part = LowRankPart(0, unit, _float32(found.up), found.scale)
        low_rank = backend.low_rank([part], rank, place.rows[0])
        nbytes += table.array.nbytes + low_rank.nbytes
    return EmbeddingChange(table, low_rank, whole, nbytes)


def _whole(own: AdapterParts, backend: Backend) -> Linear:
    return backend.linear(list(own.whole.values()), dtype=None)


def _in_order(up: HostTensor, order: np.ndarray) -> HostTensor:
    return replace(up, array=up.array[order])


def _of_one_type(parts: list[LowRankPart]) -> list[LowRankPart]:
    """Return the parts of a linear, as float32 where their types differ."""
    if len({part.down.dtype for part in parts}) < 2:
        return parts
    return [replace(part, down=_float32(part.down), up=_float32(part.up)) for part in parts]


def _float32(tensor: HostTensor) -> HostTensor:
    return HostTensor(tensor.name, "float32", tensor.float32())
