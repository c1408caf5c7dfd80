"""A module whose layer is one more of its target's, with experts or latents: built as those are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quire.checkpoints.tensor_source import TensorSource, check_tensors
from quire.core.model.model_config import ModelConfig
from quire.layers.decoder_layer import Layer
from quire.models.draft_heads.head_layer import HeadShape, table_shapes
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.mtp_layouts import MTPLayout
from quire.models.family_tensors import family_names, open_tensors, stored_names
from quire.models.model_builder import ModelBuilder
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shared_weights import SharedWeights
from quire.models.weight_map import WeightMap
from quire.quantization.quantization_plan import QuantizationPlan


def is_like_target(tensors: HeadTensors, target: ModelConfig, layout: MTPLayout) -> bool:
    """Return whether a module's layer has latents or experts, which Llama's does not have."""
    names = family_names(target)
    modules = [name for name in (names.latents, names.router) if name]
    return any(f"{layout.layer}{module}.weight" in tensors.names for module in modules)


def read_like_target(tensors: HeadTensors, target: ModelConfig, layout: MTPLayout) -> HeadShape:
    """Check such a module.

    Raises:
        ModelLoadError: The tensors are not those of a layer of the target and of a module.
    """
    config, size = _layer_config(target), target.hidden_size
    source, weights = _open(tensors.path, config, layout)
    shapes = weights.layer_shapes(0) | {f"{layout.mix}.weight": (size, 2 * size)}
    norms = layout.embed_norm, layout.feature_norm, layout.last_norm
    shapes |= {f"{module}.weight": (size,) for module in norms}
    tables = dict.fromkeys((layout.embedding, layout.output), target.vocab_size)
    others = {name for name in source.names if not name.startswith(layout.prefix)}
    check_tensors(source, shapes | table_shapes(tensors, tables, size), (), others)
    return HeadShape(config, layout.layer, target.vocab_size)


def build_like_target(
    builder: HeadBuilder, shape: HeadShape, layout: MTPLayout, max_positions: int
) -> Layer:
    """Make the layer, which ends with the module's last norm."""
    config = replace(shape.config, dtype=builder.dtype)
    source, weights = _open(builder.tensors.path, config, layout)
    opened = OpenedCheckpoint(source.path, config, False, source, weights, max_positions)
    plan = QuantizationPlan(layers=builder.scheme)
    made = ModelBuilder(builder.backend, opened, plan, None, None, SharedWeights())
    layer = made.layer(config, 0, made.ropes(config, max_positions))
    builder.weight_bytes += made.weight_bytes
    return layer


def _layer_config(target: ModelConfig) -> ModelConfig:
    """Return a decoder of the one layer, of those that the target has last."""
    moe = None if target.moe is None else replace(target.moe, dense_layers=())
    return replace(target, num_layers=1, moe=moe, layer_windows=(), rope_layers=())


def _open(folder: Path, config: ModelConfig, layout: MTPLayout) -> tuple[TensorSource, WeightMap]:
    source = open_tensors(folder, config)
    names = stored_names(source, config)
    return source, WeightMap(
        config, replace(names, layer=layout.layer, final_norm=layout.last_norm)
    )
