"""EAGLE-3: features of several depths of the target, a layer over embedding and feature.

The output before the last norm is the next feature. A draft vocabulary may be smaller than the
target's: ``d2t[i] + i`` is the target's id of draft token i.

Source: Li et al. 2025 (EAGLE-3); names of tensors as in its published checkpoints and in those of
``speculators``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.errors import ModelLoadError
from quire.core.model_config import ModelConfig
from quire.models.decoder import Decoder
from quire.models.draft_heads.head_layer import (
    EMBEDDING,
    HeadShape,
    build_layer,
    find_layer,
    layer_shapes,
    own_or,
    read_layer,
    table_shapes,
)
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.recurrent import HeadParts, RecurrentHead, WideEntry
from quire.models.tensor_source import check_tensors

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
#: Options of ``speculators`` for further norms.
OTHER_NORMS = ("norm_before_fc", "fc_norm", "norm_output")


def read_eagle3(tensors: HeadTensors, target: ModelConfig) -> HeadShape:
    """Check a folder.

    Raises:
        ModelLoadError: It is no EAGLE-3 head of that target.
    """
    _refuse_options(tensors)
    config = read_layer(tensors, target)
    size, draft_size = config.hidden_size, target.vocab_size
    if "d2t" in tensors.names:
        draft_size = len(_draft_ids(tensors, target.vocab_size))
    layers = _captured_layers(tensors, target)
    layer = find_layer(tensors, ["midlayer.", "layers.0."])
    shape = HeadShape(config, layer, draft_size, layers)
    norms = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    shapes = layer_shapes(tensors, shape, 2 * size, ["norm", *(layer + norm for norm in norms)])
    shapes["fc.weight"] = (size, len(layers) * target.hidden_size)
    if draft_size != target.vocab_size:
        shapes["lm_head.weight"] = (draft_size, size)
    if "d2t" in tensors.names:
        shapes["d2t"] = (draft_size,)
    tables = {EMBEDDING: target.vocab_size, "lm_head": draft_size}
    check_tensors(tensors, shapes | table_shapes(tensors, tables, size), ("t2d",))
    return shape


def load_eagle3(
    shape: HeadShape, builder: HeadBuilder, target: Decoder, max_positions: int
) -> RecurrentHead:
    """Make the head."""
    eps, layer = shape.config.norm_eps, shape.layer
    entry = WideEntry(
        builder.norm(f"{layer}input_layernorm", eps),
        builder.norm(f"{layer}hidden_norm", eps),
        bool(builder.tensors.config.values.get("norm_before_residual", False)),
    )
    made = build_layer(builder, shape, max_positions, builder.norm("norm", eps))
    fc = builder.linear(["fc"])
    embedding = own_or(builder, EMBEDDING, target.embedding)
    output = own_or(builder, "lm_head", target.head)
    draft_ids = None
    if "d2t" in builder.tensors.names:
        draft_ids = _draft_ids(builder.tensors, shape.config.vocab_size)
    parts = HeadParts(embedding, fc, entry, made, output, draft_ids, builder.weight_bytes)
    return RecurrentHead(shape.config, builder.backend, parts, shape.layers)


def _refuse_options(tensors: HeadTensors) -> None:
    """Refuse variants of the head that compute something else."""
    for name in OTHER_NORMS:
        if tensors.config.values.get(name):
            raise ModelLoadError(
                f"[load] {tensors.config.where}: {name} must be false; got "
                f"{tensors.config.values[name]!r:.80}. Take a head without it."
            )


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
