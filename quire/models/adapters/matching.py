"""Which of a model's modules an adapter's tensors are for, by name, and whether they fit.

D model dim, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from quire.core.errors import ModelLoadError
from quire.kernels.host_tensor import HostTensor
from quire.layers.adapted_linear import AdapterPlace
from quire.models.adapters.peft_folder import AdapterMatrices, PeftAdapter

Part = TypeVar("Part")

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class AdapterParts(NamedTuple):
    """What an adapter has, by the names that places have for modules; see ``peft_folder.py``."""

    matrices: dict[str, AdapterMatrices]
    biases: dict[str, HostTensor]
    whole: dict[str, HostTensor]


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
    find_parts(adapter, places)


def find_parts(adapter: PeftAdapter, places: Sequence[AdapterPlace]) -> AdapterParts:
    """Return what an adapter has for each of a model's modules.

    Raises:
        ModelLoadError: The model does not have one of them, or it has another size.
    """
    found = AdapterParts(
        _match(adapter, adapter.matrices, places, "a linear or the embedding"),
        _match(adapter, adapter.biases, places, "the bias of a linear"),
        _match(adapter, adapter.whole, [p for p in places if p.whole], "the head or embedding"),
    )
    for place in places:
        for module, rows in zip(place.modules, place.rows, strict=True):
            matrices, bias = found.matrices.get(module), found.biases.get(module)
            if matrices is not None:
                got = matrices.up.shape[0], matrices.down.shape[1]
                _check_shape(adapter, module, got, (rows, place.columns))
                if place.embeds and matrices.magnitudes is not None:
                    raise ModelLoadError(
                        f"[adapter] {adapter.path}: DoRA must be of linears; got {module}, the "
                        "embedding. Merge the adapter into its model with PEFT, and serve that."
                    )
            if bias is not None:
                _check_shape(adapter, module, bias.shape, (rows,))
            if module in found.whole and place.whole is not None:
                _check_shape(adapter, module, found.whole[module].shape, place.whole)
    return found


def _match(
    adapter: PeftAdapter, parts: Mapping[str, Part], places: Sequence[AdapterPlace], kind: str
) -> dict[str, Part]:
    """Return parts by the places' names; the first parts of either name may be left out."""
    left, by_tail, found = dict(parts), dict[str, list[str]](), dict[str, Part]()
    for name in left:
        by_tail.setdefault(_tail(name), []).append(name)
    modules = [module for place in places for module in place.modules]
    for module in modules:
        known = _name_of(module, by_tail.get(_tail(module), ()))
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


def _check_shape(
    adapter: PeftAdapter, name: str, got: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    if got != wanted:
        raise ModelLoadError(
            f"[adapter] {adapter.path}: {name:.120} must be for a matrix of {wanted}; got {got}. "
            "Serve it with the model it was trained for."
        )
