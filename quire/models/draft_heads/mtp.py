"""An MTP module: a whole layer over a mix of embedding and feature, each with a norm of its own.

The feature is what the target's final norm makes of a position, and the module's own output before
its last norm in a draft (after it in Qwen's layout). The layer is Llama's, Qwen's or, where it has
latents or experts, one more of the target's.

Source: DeepSeek-AI 2024 (DeepSeek-V3); names in :mod:`quire.models.draft_heads.mtp_layouts`.
"""

from __future__ import annotations

from quire.checkpoints.tensor_source import check_tensors
from quire.core.errors import ModelLoadError
from quire.core.model.model_config import ModelConfig
from quire.models.draft_heads.head_layer import (
    INPUT_NORM,
    MLP_NORM,
    HeadShape,
    build_layers,
    layer_shapes,
    own_or,
    read_layer,
    table_shapes,
)
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.like_target import (
    build_like_target,
    is_like_target,
    read_like_target,
)
from quire.models.draft_heads.mtp_layouts import MTPLayout, find_layouts
from quire.models.draft_heads.recurrent import HeadParts, MixedEntry, RecurrentHead
from quire.models.model import Model


def read_mtp(tensors: HeadTensors, target: ModelConfig) -> HeadShape:
    """Check a folder, or the module in a target's own checkpoint.

    Raises:
        ModelLoadError: The path has no MTP module of that target.
    """
    layout = _layout(tensors)
    if is_like_target(tensors, target, layout):
        return read_like_target(tensors, target, layout)
    config = read_layer(tensors, target)
    shape = HeadShape(config, layout.layer, target.vocab_size)
    size = config.hidden_size
    norms = [layout.embed_norm, layout.feature_norm, layout.last_norm]
    norms += [layout.layer + norm for norm in (INPUT_NORM, MLP_NORM)]
    shapes = layer_shapes(tensors, config, layout.layer, size, norms)
    shapes[f"{layout.mix}.weight"] = (size, 2 * size)
    tables = dict.fromkeys((layout.embedding, layout.output), target.vocab_size)
    check_tensors(tensors, shapes | table_shapes(tensors, tables, size), ())
    return shape


def load_mtp(
    shape: HeadShape, builder: HeadBuilder, target: Model, max_positions: int
) -> RecurrentHead:
    """Make the module."""
    eps, layout = shape.config.norm_eps, _layout(builder.tensors)
    names = (layout.embed_norm, layout.feature_norm, layout.layer + INPUT_NORM)
    entry = MixedEntry(builder.linear([layout.mix]), *(builder.norm(name, eps) for name in names))
    if is_like_target(builder.tensors, target.config, layout):
        made = build_like_target(builder, shape, layout, max_positions)
    else:
        (made,) = build_layers(builder, shape, max_positions, builder.norm(layout.last_norm, eps))
    parts = HeadParts(
        embedding=own_or(builder, layout.embedding, target.embedding),
        fc=None,
        entry=entry,
        layer=made,
        output=own_or(builder, layout.output, target.head),
        draft_ids=None,
        weight_bytes=builder.weight_bytes,
        feeds_normed=layout.feeds_normed,
    )
    return RecurrentHead(shape.config, builder.backend, parts, shape.layers)


def _layout(tensors: HeadTensors) -> MTPLayout:
    found = find_layouts(tensors.names)
    if not found:
        some = ", ".join(sorted(tensors.names)[:4])
        raise ModelLoadError(
            "[load] an MTP module must have model.layers.N.eh_proj.weight, mtp.fc.weight or "
            f"mtp_layers.0.input_proj.weight; got {some} and others in {tensors.path}."
        )
    return found[0]
