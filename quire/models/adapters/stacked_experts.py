"""Additions of adapters to parameters that hold a matrix of all experts, taken apart by expert.

PEFT wraps the module that has the parameters, once for each, so that only their shapes tell which
is which: 2 M outputs of D inputs, or D of M. E experts, D model dim, M width of an expert, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.adapters.adapter_slots import AdapterPlace, StackedExperts
from quire.models.adapters.module_names import ModuleNames
from quire.models.adapters.peft_folder import AdapterMatrices, PeftAdapter, StackedMatrices


def take_apart(adapter: PeftAdapter, places: Sequence[AdapterPlace]) -> dict[str, AdapterMatrices]:
    """Return what an adapter adds to each expert's modules, those of one linear with one ``down``.

    Raises:
        ModelLoadError: A parameter is not one of the model's, or has another shape or rank.
    """
    if not adapter.stacked:
        return {}
    names, found = ModuleNames(adapter.stacked), dict[str, AdapterMatrices]()
    pairs = [
        (place, stack, own)
        for place in places
        for stack in place.stacks
        for own in adapter.stacked.get(names.find(stack.parameter.rpartition(".")[0]) or "", ())
    ]
    is_turned, used = _are_turned(adapter, pairs), set[int]()
    for place, stack, own in pairs:
        wanted = place.columns, sum(place.rows)
        rank = adapter.settings.rank(stack.parameter)
        fits = own.sizes == (wanted[::-1] if is_turned else wanted)
        if fits and own.down.shape[0] == rank * stack.count:
            used.add(id(own))
            scale = adapter.settings.scale(int(rank), stack.parameter)
            found.update(_of_modules(*_of_expert(own, stack, is_turned), scale, stack, place))
    for name, parameters in adapter.stacked.items():
        for own in parameters:
            if id(own) not in used:
                raise ModelLoadError(
                    f"[adapter] {adapter.path}: {name:.120} must be of the rank of its "
                    "configuration, or have matrices for all experts of a layer of the model; got "
                    f"{own.down.shape} and {own.up.shape}. Serve it with the model it was trained "
                    "for."
                )
    return found


def _are_turned(
    adapter: PeftAdapter, pairs: Sequence[tuple[AdapterPlace, StackedExperts, StackedMatrices]]
) -> bool:
    """Return whether PEFT took inputs of the parameters for outputs.

    It did with those stored (out, in) up to 0.19.0, and does with those stored (in, out) where the
    model does not say so. Matrices that are not square tell; all of an adapter are alike.
    """
    for place, _, own in pairs:
        wanted = place.columns, sum(place.rows)
        if wanted[0] != wanted[1] and own.sizes in (wanted, wanted[::-1]):
            return own.sizes != wanted
    return adapter.settings.turns_parameters and not any(stack.transposed for _, stack, _ in pairs)


def _of_expert(
    own: StackedMatrices, stack: StackedExperts, is_turned: bool
) -> tuple[HostTensor, HostTensor]:
    """Return an expert's (R, inputs) and (outputs, R)."""
    rank = own.down.shape[0] // stack.count
    down = own.down.array[stack.expert * rank : (stack.expert + 1) * rank]
    up = own.up.array[:, stack.expert :: stack.count]
    if is_turned:
        down, up = up.T, down.T
    return replace(own.down, array=down), replace(own.up, array=up)


def _of_modules(
    down: HostTensor, up: HostTensor, scale: float, stack: StackedExperts, place: AdapterPlace
) -> dict[str, AdapterMatrices]:
    """Return the same by the modules that the linear is stacked of."""
    found, first, count = dict[str, AdapterMatrices](), 0, len(place.modules)
    for number, (module, rows) in enumerate(zip(place.modules, place.rows, strict=True)):
        own = slice(number, None, count) if stack.interleaved else slice(first, first + rows)
        found[module] = AdapterMatrices(down, replace(up, array=up.array[own]), scale)
        first += rows
    return found
