"""EAGLE-3: features of several depths of the target, a layer over embedding and feature.

The output before the last norm is the next feature (after it with ``norm_output``). Further layers
read what the one before makes. A draft vocabulary may be smaller than the target's: ``d2t[i] + i``
is the target's id of draft token i. A head with a mask drafts several tokens at once (P-EAGLE).

Sources: Li et al. 2025 (EAGLE-3), arXiv 2602.01469 (P-EAGLE); names of tensors as in published
checkpoints and in those of ``speculators``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from quire.checkpoints.tensor_source import check_tensors
from quire.core.errors import ModelLoadError
from quire.core.model.model_config import ModelConfig
from quire.models.draft_heads.head_layer import (
    EMBEDDING,
    INPUT_NORM,
    MLP_NORM,
    QKV,
    HeadShape,
    build_layers,
    find_layer,
    layer_shapes,
    own_or,
    read_layer,
    table_shapes,
)
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.recurrent import HeadParts, MaskPair, RecurrentHead, WideEntry
from quire.models.draft_heads.state_norms import StateNorms
from quire.models.model import Model

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
HIDDEN_NORM = "hidden_norm"
#: The state of pairs to come, in heads that draft several tokens at once.
MASK_STATE = "mask_hidden"
#: Their token: in ``speculators``, and in the configurations that vLLM reads.
MASK_IDS = ("mask_token_id", "pard_token", "ptd_token_id")
#: vLLM's layers have one each; that of the first is read.
HARMLESS = ("t2d", r"layers\.[1-9]\d*\.hidden_norm\.weight")


def read_eagle3(tensors: HeadTensors, target: ModelConfig) -> HeadShape:
    """Check a folder.

    Raises:
        ModelLoadError: The folder has no EAGLE-3 head of that target.
    """
    config = read_layer(tensors, target)
    size, draft_size = config.hidden_size, target.vocab_size
    if "d2t" in tensors.names:
        draft_size = len(_draft_ids(tensors, target.vocab_size))
    layers = _captured_layers(tensors, target)
    state_size = len(layers) * target.hidden_size
    layer, further = find_layer(tensors, ["midlayer.", "layers.0."]), _further_layers(tensors)
    config = replace(config, num_layers=1 + len(further))
    mask_id = _mask_token_id(tensors, target.vocab_size)
    shape = HeadShape(config, layer, draft_size, layers, further, mask_id)
    norms = ["norm", *(layer + norm for norm in (INPUT_NORM, HIDDEN_NORM, MLP_NORM))]
    shapes = layer_shapes(tensors, config, layer, 2 * size, norms)
    for prefix in further:
        own = [prefix + norm for norm in (INPUT_NORM, MLP_NORM)]
        shapes |= layer_shapes(tensors, config, prefix, size, own)
    shapes["fc.weight"] = (size, state_size)
    shapes |= {f"{name}.weight": (width,) for name, width in _state_norms(tensors, shape).items()}
    if draft_size != target.vocab_size:
        shapes["lm_head.weight"] = (draft_size, size)
    if "d2t" in tensors.names:
        shapes["d2t"] = (draft_size,)
    if mask_id is not None:
        leading = len(tensors.entry(MASK_STATE).shape) - 1
        shapes[MASK_STATE] = (*(1,) * leading, state_size)
    tables = {EMBEDDING: target.vocab_size, "lm_head": draft_size}
    check_tensors(tensors, shapes | table_shapes(tensors, tables, size), HARMLESS)
    return shape


def load_eagle3(
    shape: HeadShape, builder: HeadBuilder, target: Model, max_positions: int
) -> RecurrentHead:
    """Make the head."""
    eps, layer = shape.config.norm_eps, shape.layer
    config, backend = builder.tensors.config, builder.backend
    entry = WideEntry(
        builder.norm(f"{layer}{INPUT_NORM}", eps),
        builder.norm(f"{layer}{HIDDEN_NORM}", eps),
        config.boolean("norm_before_residual", False),
    )
    first, *further = build_layers(builder, shape, max_positions, builder.norm("norm", eps))
    norms = [builder.norm(name, eps) for name in _state_norms(builder.tensors, shape)]
    draft_ids, mask = None, None
    if "d2t" in builder.tensors.names:
        draft_ids = _draft_ids(builder.tensors, shape.config.vocab_size)
    if shape.mask_token_id is not None:
        mask = MaskPair(shape.mask_token_id, builder.parameter(MASK_STATE).reshape(-1))
    parts = HeadParts(
        embedding=own_or(builder, EMBEDDING, target.embedding),
        fc=builder.linear(["fc"]),
        entry=entry,
        layer=first,
        output=own_or(builder, "lm_head", target.head),
        draft_ids=draft_ids,
        weight_bytes=builder.weight_bytes,
        feeds_normed=config.boolean("norm_output", False),
        further=tuple(further),
        state_norm=StateNorms(norms, backend) if norms else None,
        mask=mask,
    )
    return RecurrentHead(shape.config, backend, parts, shape.layers)


def _further_layers(tensors: HeadTensors) -> tuple[str, ...]:
    """Return what the names of the layers after the first begin with."""
    found: list[str] = []
    while f"layers.{len(found) + 1}.{QKV[0]}.weight" in tensors.names:
        found.append(f"layers.{len(found) + 1}.")
    return tuple(found)


def _state_norms(tensors: HeadTensors, shape: HeadShape) -> dict[str, int]:
    """Return the norms ahead of ``fc``, options of ``speculators``, and the width of each."""
    config, size, count = tensors.config, shape.config.hidden_size, len(shape.layers)
    whole, each = (config.boolean(name, False) for name in ("norm_before_fc", "fc_norm"))
    if whole and each:
        raise ModelLoadError(
            f"[load] {config.where}: norm_before_fc and fc_norm must not both be true; got both."
        )
    if each:
        return {f"fc_norm.{number}": size for number in range(count)}
    return {"input_norm": count * size} if whole else {}


def _mask_token_id(tensors: HeadTensors, vocab_size: int) -> int | None:
    """Return the token of pairs to come; None where the head drafts one token after the other."""
    values = tensors.config.values
    is_parallel = values.get("speculators_model_type") == "peagle"
    is_parallel = is_parallel or any(values.get(name) is not None for name in MASK_IDS[1:])
    if MASK_STATE not in tensors.names and not is_parallel:
        return None
    tensors.entry(MASK_STATE)
    found = [values[name] for name in MASK_IDS if values.get(name) is not None]
    if not found or type(found[0]) is not int or not 0 <= found[0] < vocab_size:
        raise ModelLoadError(
            f"[load] {tensors.config.where}: a head with {MASK_STATE} must have one of "
            f"{', '.join(MASK_IDS)}, a token of the model's {vocab_size}; got "
            f"{found[0] if found else None!r:.80}."
        )
    return found[0]


def _captured_layers(tensors: HeadTensors, target: ModelConfig) -> tuple[int, ...]:
    """Return the layers whose entering states are read; published heads often leave them out."""
    values: dict[str, Any] = dict(tensors.config.values)
    layers = values.get(LAYER_IDS) or (values.get("eagle_config") or {}).get(LAYER_IDS)
    count = target.num_layers
    layers = layers or sorted({min(2, count - 1), count // 2, max(count - 3, 0)})
    inside = isinstance(layers, list) and all(type(n) is int and 0 <= n < count for n in layers)
    if not inside or layers != sorted(set(layers)):
        raise ModelLoadError(
            f"[load] {tensors.config.where}: {LAYER_IDS} must be ascending layers of the model it "
            f"drafts for, which has {count}; got {layers!r:.80}."
        )
    return tuple(layers)


def _draft_ids(tensors: HeadTensors, vocab_size: int) -> np.ndarray:
    """Return the target's ids (W,) of the draft's tokens."""
    offsets = tensors.integers("d2t").reshape(-1)
    ids: np.ndarray = offsets + np.arange(len(offsets))
    if not len(ids) or ids.min() < 0 or ids.max() >= vocab_size or len(set(ids)) < len(ids):
        raise ModelLoadError(
            f"[load] {tensors.path}: d2t must lead to different tokens of the vocabulary of the "
            f"model it drafts for, {vocab_size}; got ids up to {max(ids, default=0)}."
        )
    return ids
