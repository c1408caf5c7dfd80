"""Placement of an adapter on the parts of a decoder, in the kernels' order.

R rank, D model dim, V vocabulary, O outputs of a linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quire.kernels.backend import Backend, Linear
from quire.kernels.low_rank import LowRankPart
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.adapters.adapter_slots import AdapterChange, AdapterPlace, AdapterSlots
from quire.models.adapters.base_weights import BaseWeights, Floats
from quire.models.adapters.matching import AdapterParts, find_parts, low_rank_bytes
from quire.models.adapters.peft_folder import PeftAdapter


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """An adapter on a backend.

    Attributes:
        parts: Slots that it is added to, each with its change.
        nbytes: Bytes of its matrices.
    """

    parts: Sequence[tuple[AdapterSlots, AdapterChange]]
    nbytes: int

    def set(self, slot: int) -> None:
        """Add the adapter to rows of a slot, from the next step on."""
        for slots, change in self.parts:
            slots.set(slot, change)

    def clear(self, slot: int) -> None:
        """Add nothing to rows of a slot any longer."""
        for slots, _ in self.parts:
            slots.clear(slot)


def place_adapter(
    adapter: PeftAdapter,
    adapted: Sequence[AdapterSlots],
    backend: Backend,
    base: BaseWeights,
    elsewhere: Sequence[AdapterPlace] = (),
) -> PlacedAdapter:
    """Copy an adapter's matrices to where a decoder's parts find them.

    Args:
        adapter: The adapter, which may have matrices for all of the model.
        adapted: Slots of the parts that this decoder has.
        backend: The backend that holds the matrices.
        base: The model's checkpoint.
        elsewhere: Places of the model that this decoder does not have.

    Raises:
        ModelLoadError: The adapter does not fit the places; see
            :func:`~quire.models.adapters.matching.check_adapter`.
    """
    found = find_parts(adapter, [*(slots.place for slots in adapted), *elsewhere])
    placed = list[tuple[AdapterSlots, AdapterChange]]()
    for slots in adapted:
        own = found.of(slots.place)
        if any(own):
            placed.append((slots, _change(own, slots.place, backend, base)))
    return PlacedAdapter(placed, sum(change.nbytes for _, change in placed))


def largest_adapter_bytes(places: Sequence[AdapterPlace], max_rank: int) -> int:
    """Return the memory of an adapter of all places but experts', in float32, of a rank."""
    return sum(low_rank_bytes(place, max_rank) for place in places if not place.is_expert)


def _change(
    own: AdapterParts, place: AdapterPlace, backend: Backend, base: BaseWeights
) -> AdapterChange:
    parts, table, low_rank = _low_rank_parts(own, place), None, None
    factors = shifts = whole = None
    nbytes = 0
    if own.biases or any(part.magnitudes is not None for part in own.matrices.values()):
        made = tuple(_kept(x, place) for x in _factors_and_shifts(own, parts, place, base))
        factors, shifts = (backend.from_numpy(values) for values in made)
        nbytes += sum(values.nbytes for values in made)
    columns = place.columns
    if parts and place.embeds:
        table, parts, columns = _looked_up(parts)
        nbytes += table.array.nbytes
    if place.kept is not None:
        parts = _parts_of_rows(parts, place.kept)
    if parts:
        outputs = sum(place.rows) if place.kept is None else len(place.kept)
        low_rank = backend.low_rank(_of_one_type(parts), columns, outputs)
        nbytes += low_rank.nbytes
    if own.whole:
        whole = _whole(own, place, backend)
        nbytes += whole.nbytes
    return AdapterChange(low_rank, factors, shifts, whole, table, nbytes)


def _low_rank_parts(own: AdapterParts, place: AdapterPlace) -> list[LowRankPart]:
    parts, first = list[LowRankPart](), 0
    for module, rows, order in zip(place.modules, place.rows, place.orders, strict=True):
        found = own.matrices.get(module)
        if found is not None:
            up = found.up if order is None else _in_order(found.up, order)
            if parts and parts[-1].down is found.down:  # one product for the whole linear
                both = np.concatenate([parts[-1].up.array, up.array])
                parts[-1] = replace(parts[-1], up=replace(up, array=both))
            else:
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


def _looked_up(parts: list[LowRankPart]) -> tuple[HostTensor, list[LowRankPart], int]:
    """Return an embedding's table (V, R), what its rows are multiplied by, and R."""
    (part,) = parts
    rank = part.down.shape[0]
    # A copy: the mapped file may change, and a row of it is read in one piece.
    table = replace(part.down, array=np.ascontiguousarray(part.down.array.T))
    unit = HostTensor(part.down.name, "float32", np.eye(rank, dtype=np.float32))
    return table, [replace(part, down=unit, up=_float32(part.up))], rank


def _whole(own: AdapterParts, place: AdapterPlace, backend: Backend) -> Linear:
    matrices = [replace(matrix, array=_kept(matrix.array, place)) for matrix in own.whole.values()]
    return backend.linear(matrices, dtype=None)


def _in_order(up: HostTensor, order: np.ndarray) -> HostTensor:
    return replace(up, array=up.array[order])


def _kept(rows: np.ndarray, place: AdapterPlace) -> np.ndarray:
    return rows if place.kept is None else rows[place.kept]


def _parts_of_rows(parts: Sequence[LowRankPart], kept: np.ndarray) -> list[LowRankPart]:
    """Return what the parts add to some outputs, which go up within each part's."""
    found = list[LowRankPart]()
    for part in parts:
        outputs = kept - part.first_output
        (own,) = np.nonzero((outputs >= 0) & (outputs < part.up.shape[0]))
        if len(own):
            up = _in_order(part.up, outputs[own])
            found.append(replace(part, first_output=int(own[0]), up=up))
    return found


def _of_one_type(parts: list[LowRankPart]) -> list[LowRankPart]:
    """Return the parts of a linear, as float32 where their types differ."""
    if len({part.down.dtype for part in parts}) < 2:
        return parts
    return [replace(part, down=_float32(part.down), up=_float32(part.up)) for part in parts]


def _float32(tensor: HostTensor) -> HostTensor:
    return HostTensor(tensor.name, "float32", tensor.float32())
