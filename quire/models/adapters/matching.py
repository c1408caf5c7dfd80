"""The modules of a model that an adapter's tensors are for, by name, and whether they fit.

D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.adapters.adapter_slots import AdapterPlace
from quire.models.adapters.module_names import ModuleNames
from quire.models.adapters.peft_folder import AdapterMatrices, PeftAdapter
from quire.models.adapters.stacked_experts import take_apart

Part = TypeVar("Part")


class AdapterParts(NamedTuple):
    """Tensors of an adapter, by the names that places have for modules; see ``peft_folder.py``."""

    matrices: dict[str, AdapterMatrices]
    biases: dict[str, HostTensor]
    whole: dict[str, HostTensor]

    def of(self, place: AdapterPlace) -> AdapterParts:
        """Return what is for one place."""

        def own(parts: dict[str, Part]) -> dict[str, Part]:
            return {name: parts[name] for name in place.modules if name in parts}

        return AdapterParts(own(self.matrices), own(self.biases), own(self.whole))


def check_adapter(adapter: PeftAdapter, places: Sequence[AdapterPlace], max_rank: int) -> int:
    """Refuse an adapter that does not fit a decoder.

    Returns:
        Memory that it takes besides low ranks of linears that all rows pass.

    Raises:
        ModelLoadError: The adapter's rank is too large, or it is for modules that the model does
            not have, or of other sizes.
    """
    found = find_parts(adapter, places)
    rank = max((part.down.shape[0] for part in found.matrices.values()), default=0)
    if rank > max_rank:
        raise ModelLoadError(
            f"[adapter] {adapter.path}: the rank must be at most --max-lora-rank ({max_rank}); got "
            f"{rank}. Raise the setting."
        )
    experts = (place for place in places if place.is_expert)
    return adapter.whole_bytes + sum(
        low_rank_bytes(place, rank) for place in experts if any(found.of(place))
    )


def low_rank_bytes(place: AdapterPlace, rank: int) -> int:
    """Return the memory of an adapter of one place, in float32, of a rank."""
    # Kernels round ranks and outputs up.
    elements = -(-rank * len(place.rows) // 4) * 4 * place.columns + 2 * sum(place.rows)
    elements += sum(rank * -(-rows // 64) * 64 for rows in place.rows)
    return 4 * elements


def find_parts(adapter: PeftAdapter, places: Sequence[AdapterPlace]) -> AdapterParts:
    """Return what an adapter has for each of a model's modules.

    Raises:
        ModelLoadError: The model does not have one of them, or it has another size.
    """
    linears = [place for place in places if place.columns]
    found = AdapterParts(
        _match(adapter, adapter.matrices, linears, "a linear or the embedding"),
        _match(adapter, adapter.biases, places, "the bias of a linear or a norm"),
        _match(adapter, adapter.whole, [p for p in places if p.whole], "the head or embedding"),
    )
    for place in places:
        for module, rows in zip(place.modules, place.rows, strict=True):
            matrices, bias = found.matrices.get(module), found.biases.get(module)
            if matrices is not None:
                got = matrices.up.shape[0], matrices.down.shape[1]
                _check_shape(adapter, module, got, (rows, place.columns))
            if bias is not None:
                _check_shape(adapter, module, bias.shape, (rows,))
            if module in found.whole and place.whole is not None:
                _check_shape(adapter, module, found.whole[module].shape, place.whole)
    found.matrices.update(take_apart(adapter, linears))
    return found


def _match(
    adapter: PeftAdapter, parts: Mapping[str, Part], places: Sequence[AdapterPlace], kind: str
) -> dict[str, Part]:
    """Return parts by the places' names; the first parts of either name may be left out."""
    left, names, found = dict(parts), ModuleNames(parts), dict[str, Part]()
    modules = [module for place in places for module in place.modules]
    said = [(module, n) for p in places for module in p.modules for n in (module, *p.aliases)]
    for module, name in said:
        known = names.find(name)
        if known is not None and known in left:
            found[module] = left.pop(known)
    if left:
        tails = sorted({module.rpartition(".")[2] for module in modules})
        raise ModelLoadError(
            f"[adapter] {adapter.path} must be for linears of the model, and each tensor for "
            f"{kind} ({', '.join(tails)}); got {sorted(left)[0]:.120}. Serve it with the model it "
            "was trained for, or merged into it with PEFT."
        )
    return found


def _check_shape(
    adapter: PeftAdapter, name: str, got: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    if got != wanted:
        raise ModelLoadError(
            f"[adapter] {adapter.path}: {name:.120} must be for a matrix of {wanted}; got {got}. "
            "Serve it with the model it was trained for."
        )
