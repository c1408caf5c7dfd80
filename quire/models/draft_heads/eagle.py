"""EAGLE: feature and embedding through one matrix and one layer, whose output is the next feature.

The feature is what the target's final norm makes of a position, so that the target's head reads
the output without a norm of its own.

Source: Li et al. 2024 (EAGLE), Zhang et al. 2024 (HASS); names of tensors in
:mod:`quire.models.draft_heads.eagle_layouts`.
"""

from __future__ import annotations

from quire.checkpoints.tensor_source import check_tensors
from quire.core.model.model_config import ModelConfig
from quire.models.draft_heads.eagle_layouts import find_layout
from quire.models.draft_heads.head_layer import (
    EMBEDDING,
    MLP_NORM,
    HeadShape,
    build_layers,
    find_layer,
    layer_shapes,
    own_or,
    read_layer,
    table_shapes,
)
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.recurrent import Addition, HeadParts, MixedEntry, RecurrentHead
from quire.models.model import Model


def read_eagle(tensors: HeadTensors, target: ModelConfig) -> HeadShape:
    """Check a folder.

    Raises:
        ModelLoadError: The folder has no EAGLE head of that target.
    """
    config, layout = read_layer(tensors, target), find_layout(tensors)
    shape = HeadShape(config, find_layer(tensors, [layout.layer]), target.vocab_size)
    size = config.hidden_size
    norms = [f"{shape.layer}{MLP_NORM}", *layout.norms]
    shapes = layer_shapes(tensors, config, shape.layer, size, norms)
    shapes[f"{layout.mix}.weight"] = (size, 2 * size)
    if layout.mix_has_bias:
        shapes[f"{layout.mix}.bias"] = (size,)
    tables = {EMBEDDING: target.vocab_size, "lm_head": target.vocab_size}
    check_tensors(tensors, shapes | table_shapes(tensors, tables, size), ())
    return shape


def load_eagle(
    shape: HeadShape, builder: HeadBuilder, target: Model, max_positions: int
) -> RecurrentHead:
    """Make the head."""
    layout, eps = find_layout(builder.tensors), shape.config.norm_eps
    names = (layout.embed_norm, layout.input_norm, layout.last_norm)
    embed_norm, input_norm, last_norm = (builder.norm(n, eps) if n else None for n in names)
    last = last_norm or Addition(builder.backend)
    (layer,) = build_layers(builder, shape, max_positions, last)
    entry = MixedEntry(builder.linear([layout.mix]), embed_norm, None, input_norm)
    embedding = own_or(builder, EMBEDDING, target.embedding)
    output = own_or(builder, "lm_head", target.head)
    parts = HeadParts(embedding, None, entry, layer, output, None, builder.weight_bytes)
    return RecurrentHead(shape.config, builder.backend, parts, shape.layers)
