"""Names of the tensors of an MTP module, in a folder of its own or with their target.

Sources: DeepSeek-V3 stores a module as a layer after its last; Qwen under ``mtp.``, which
``speculators`` renames to ``mtp_layers.0.``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_DEEPSEEK = re.compile(r"(model\.layers\.(\d+)\.)eh_proj\.weight")
_QWEN = "mtp."
_QWEN_LAYERS = "mtp.layers."
_SPECULATORS = "mtp_layers.0."


@dataclass(frozen=True, slots=True)
class MTPLayout:
    """Names of a module's parts, without ``.weight``.

    Attributes:
        prefix: Prefix of the names of all its tensors.
        layer: Prefix of the names of its decoder layer's tensors.
        mix: Module of the matrix from 2 D to D.
        embed_norm, feature_norm: Norms before that matrix.
        last_norm: Norm before the output head.
        embedding, output: Tables that it may bring.
        feeds_normed: Whether a draft's feature is the module's output after the last norm.
    """

    prefix: str
    layer: str
    mix: str
    embed_norm: str
    feature_norm: str
    last_norm: str
    embedding: str
    output: str
    feeds_normed: bool


def find_layouts(names: Collection[str], first_layer: int = 0) -> list[MTPLayout]:
    """Return the modules among tensors, in the order of the tokens that they are for.

    Args:
        names: Names of tensors.
        first_layer: Number of the first layer that is not the target's.
    """
    layers = {int(m[2]): m[1] for name in names if (m := _DEEPSEEK.fullmatch(name))}
    found = [_deepseek(layers[number]) for number in sorted(layers) if number >= first_layer]
    if f"{_QWEN}fc.weight" in names:
        found.append(_qwen())
    if f"{_SPECULATORS}input_proj.weight" in names:
        found.append(_speculators())
    return found


def module_names(names: Collection[str], first_layer: int) -> frozenset[str]:
    """Return the tensors of all modules in a target's checkpoint of ``first_layer`` layers."""
    prefixes = tuple(layout.prefix for layout in find_layouts(names, first_layer))
    return frozenset(name for name in names if prefixes and name.startswith(prefixes))


def first_module(names: Collection[str], first_layer: int) -> frozenset[str]:
    """Return the tensors of the module for the next token but one, none where there is no module.

    Args:
        names: Names of the tensors of a target's checkpoint.
        first_layer: Number of the target's layers.
    """
    layouts = find_layouts(names, first_layer)
    if not layouts:
        return frozenset()
    prefix, layer = layouts[0].prefix, layouts[0].layer
    own = (name for name in names if name.startswith(prefix))
    # Qwen's modules share all but their layers.
    return frozenset(
        name for name in own if name.startswith(layer) or not name.startswith(_QWEN_LAYERS)
    )


def _deepseek(layer: str) -> MTPLayout:
    parts = ("eh_proj", "enorm", "hnorm", "shared_head.norm", "embed_tokens", "shared_head.head")
    return _layout(layer, layer, [f"{layer}{part}" for part in parts], feeds_normed=False)


def _qwen() -> MTPLayout:
    parts = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "embed_tokens", "lm_head")
    return _layout(_QWEN, f"{_QWEN_LAYERS}0.", [f"{_QWEN}{part}" for part in parts])


def _speculators() -> MTPLayout:
    parts = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
    names = [f"{_SPECULATORS}{part}" for part in parts]
    return _layout(_SPECULATORS, _SPECULATORS, [*names, "embed_tokens", "lm_head"])


def _layout(prefix: str, layer: str, names: Sequence[str], feeds_normed: bool = True) -> MTPLayout:
    mix, embed_norm, feature_norm, last_norm, embedding, output = names
    return MTPLayout(
        prefix, layer, mix, embed_norm, feature_norm, last_norm, embedding, output, feeds_normed
    )
