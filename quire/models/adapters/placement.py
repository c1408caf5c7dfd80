"""Which of a decoder's linears an adapter's matrices are added to, in the kernels' order.

R rank, D model dim, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quire.core.errors import ModelLoadError
from quire.kernels.backend import Backend
from quire.kernels.host_tensor import HostTensor
from quire.kernels.low_rank import LowRank, LowRankPart
from quire.layers.adapted_linear import AdaptedLinear, AdapterPlace
from quire.models.adapters.peft_folder import AdapterMatrices, PeftAdapter

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """An adapter on a backend.

    Attributes:
        parts: The linears it is added to, each with what is added.
        nbytes: Memory of its matrices.
    """

    parts: Sequence[tuple[AdaptedLinear, LowRank]]
    nbytes: int


def place_adapter(
    adapter: PeftAdapter, linears: Sequence[AdaptedLinear], backend: Backend
) -> PlacedAdapter:
    """Copy an adapter's matrices to where a decoder's linears find them.

    Raises:
        ModelLoadError: As of :func:`check_adapter`.
    """
    found = _find_parts(adapter, [linear.place for linear in linears])
    parts = [
        (linear, backend.low_rank(own, linear.in_features, linear.out_features))
        for linear, own in zip(linears, found, strict=True)
        if own
    ]
    return PlacedAdapter(parts, sum(held.nbytes for _, held in parts))


def check_adapter(adapter: PeftAdapter, places: Sequence[AdapterPlace], max_rank: int) -> None:
    """Refuse an adapter that does not fit a decoder.

    Raises:
        ModelLoadError: Its rank is too large, or it is for modules that the model does not have, or
            of other sizes.
    """
    if adapter.rank > max_rank:
        raise ModelLoadError(
            f"[adapter] {adapter.path}: the rank must be at most --max-lora-rank ({max_rank}); got "
            f"{adapter.rank}. Raise the setting."
        )
    find_matrices(adapter, places)


def largest_adapter_bytes(places: Sequence[AdapterPlace], max_rank: int) -> int:
    """Return the memory of an adapter of all linears, in float32, of a rank."""
    elements = 0
    for place in places:
        # Kernels round ranks and outputs up.
        rank = -(-max_rank * len(place.rows) // 4) * 4
        elements += rank * place.columns
        elements += sum(max_rank * -(-rows // 64) * 64 for rows in place.rows)
    return 4 * elements


def find_matrices(
    adapter: PeftAdapter, places: Sequence[AdapterPlace]
) -> dict[str, AdapterMatrices]:
    """Return an adapter's matrices by the checkpoint's names of what they are added to.

    Raises:
        ModelLoadError: The model does not have one of them, or it has another size.
    """
    left = dict(adapter.matrices)
    by_tail: dict[str, list[str]] = {}
    for name in left:
        by_tail.setdefault(_tail(name), []).append(name)
    found = {}
    for place in places:
        for module, rows in zip(place.modules, place.rows, strict=True):
            known = _name_of(module, by_tail.get(_tail(module), ()))
            if known is not None and known in left:
                found[module] = left.pop(known)
                _check_shapes(adapter, known, found[module], place.columns, rows)
    if left:
        tails = {module.rpartition(".")[2] for place in places for module in place.modules}
        raise ModelLoadError(
            f"[adapter] {adapter.path} must be for linears of the model "
            f"({', '.join(sorted(tails))}); got {sorted(left)[0]:.120}. Serve it with the model "
            "it was trained for."
        )
    return found


def _find_parts(adapter: PeftAdapter, places: Sequence[AdapterPlace]) -> list[list[LowRankPart]]:
    """Return, for each place, what is added there."""
    matrices, found = find_matrices(adapter, places), []
    for place in places:
        first, parts = 0, list[LowRankPart]()
        for module, rows, order in zip(place.modules, place.rows, place.orders, strict=True):
            own = matrices.get(module)
            if own is not None:
                up = own.up if order is None else _in_order(own.up, order)
                parts.append(LowRankPart(first, own.down, up, own.scale))
            first += rows
        found.append(_of_one_type(parts))
    return found


def _tail(module: str) -> str:
    """Return a name from the number of its layer on; all of it without one."""
    found = _NUMBER.search(module)
    return module.rpartition(".")[2] if found is None else module[found.start() :]


def _name_of(module: str, names: Sequence[str]) -> str | None:
    """Return the name of a module; a checkpoint may leave the first parts of it out."""
    for name in names:
        if f".{name}".endswith(f".{module}") or f".{module}".endswith(f".{name}"):
            return name
    return None


def _check_shapes(
    adapter: PeftAdapter, name: str, matrices: AdapterMatrices, inputs: int, outputs: int
) -> None:
    got = (matrices.up.shape[0], matrices.down.shape[1])
    if got != (outputs, inputs):
        raise ModelLoadError(
            f"[adapter] {adapter.path}: {name:.120} must be for a matrix of ({outputs}, {inputs}); "
            f"got {got}. Serve it with the model it was trained for."
        )


def _in_order(up: HostTensor, order: np.ndarray) -> HostTensor:
    return replace(up, array=up.array[order])


def _of_one_type(parts: list[LowRankPart]) -> list[LowRankPart]:
    """Return the parts of a linear, as float32 where their types differ."""
    if len({part.down.dtype for part in parts}) < 2:
        return parts
    return [replace(part, down=_float32(part.down), up=_float32(part.up)) for part in parts]


def _float32(tensor: HostTensor) -> HostTensor:
    return HostTensor(tensor.name, "float32", tensor.float32())
