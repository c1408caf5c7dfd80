"""An MTP module: a whole layer over a mix of embedding and feature, each with a norm of its own.

The feature is what the target's final norm makes of a position, and the module's own output before
its last norm in a draft.

Source: DeepSeek-AI 2024 (DeepSeek-V3); tensors named as there, with attention as in Llama and GLM.
"""

from __future__ import annotations

import re

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
from quire.models.draft_heads.recurrent import HeadParts, MixedEntry, RecurrentHead
from quire.models.tensor_source import check_tensors

NORMS = ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm")
LAYER = re.compile(r"(model\.layers\.\d+\.)eh_proj\.weight")


def read_mtp(tensors: HeadTensors, target: ModelConfig) -> HeadShape:
    """Check a folder.

    Raises:
        ModelLoadError: It is no MTP module of that target.
    """
    config = read_layer(tensors, target)
    found = [match[1] for name in sorted(tensors.names) if (match := LAYER.fullmatch(name))]
    layer = find_layer(tensors, found[:1] or [f"model.layers.{target.num_layers}."])
    shape = HeadShape(config, layer, target.vocab_size)
    size = config.hidden_size
    shapes = layer_shapes(tensors, shape, size, [layer + norm for norm in NORMS])
    shapes[f"{layer}eh_proj.weight"] = (size, 2 * size)
    tables = dict.fromkeys((layer + EMBEDDING, f"{layer}shared_head.head"), target.vocab_size)
    check_tensors(tensors, shapes | table_shapes(tensors, tables, size), ())
    return shape


def load_mtp(
    shape: HeadShape, builder: HeadBuilder, target: Decoder, max_positions: int
) -> RecurrentHead:
    """Make the module."""
    eps, layer = shape.config.norm_eps, shape.layer
    embed_norm, feature_norm, input_norm = (builder.norm(layer + n, eps) for n in NORMS[:3])
    entry = MixedEntry(builder.linear([f"{layer}eh_proj"]), embed_norm, feature_norm, input_norm)
    last_norm = builder.norm(f"{layer}shared_head.norm", eps)
    made = build_layer(builder, shape, max_positions, last_norm)
    embedding = own_or(builder, layer + EMBEDDING, target.embedding)
    output = own_or(builder, f"{layer}shared_head.head", target.head)
    parts = HeadParts(embedding, None, entry, made, output, None, builder.weight_bytes)
    return RecurrentHead(shape.config, builder.backend, parts, shape.layers)
