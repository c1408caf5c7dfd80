"""A checkpoint's picture encoder, read and packed; the decoder has a loader of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from quire.checkpoints.tensor_source import check_tensors
from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.core.model.model_config import ModelConfig, RopeConfig
from quire.core.model.vision_config import VisionConfig
from quire.kernels.backend import Array, Backend
from quire.layers.rope import rope_tables
from quire.models.family_tensors import open_tensors
from quire.models.vision.encoder import EncoderLayer, EncoderParts, PictureEncoder
from quire.models.vision.projectors import MlpProjector, Projector, SquaresProjector
from quire.models.vision.qwen_weights import QwenVisionWeights
from quire.models.vision.tensor_reader import TensorReader
from quire.models.vision.tiles import TileJoiner
from quire.models.vision.weights import VisionLayerWeights, VisionWeights

#: First parts of the names of an encoder's tensors.
PREFIXES = (
    "vision_tower.",
    "multi_modal_projector.",
    "image_newline",
    "visual.",
    "model.vision_model.",
    "model.connector.",
)


def encoder_names(names: Collection[str]) -> set[str]:
    """Return which of a checkpoint's tensors are its encoder's."""
    return {name for name in names if name.startswith(PREFIXES)}


def expected_encoder_bytes(config: ModelConfig, dtype: str) -> int:
    """Return what an encoder will take, in bytes; 0 for a model that has none."""
    if config.vision is None:
        return 0
    shapes = vision_weights(config.vision, config.hidden_size).shapes()
    return sum(_held_bytes(shape, dtype) for shape in shapes.values())


def vision_weights(
    config: VisionConfig, width: int, stored: Collection[str] = ()
) -> VisionWeights | QwenVisionWeights:
    """Return which tensors an encoder takes; arguments as of :class:`VisionWeights`."""
    if config.kind == "qwen":
        return QwenVisionWeights(config, width)
    return VisionWeights(config, width, stored)


def load_encoder(
    path: Path, config: ModelConfig, backend: Backend, dtype: str
) -> PictureEncoder | None:
    """Load the encoder of a model that reads pictures; None for one that does not.

    Args:
        path: The checkpoint.
        config: The model's configuration.
        backend: The backend that packs and computes.
        dtype: Type its matrices are held in.

    Raises:
        ModelLoadError: A tensor is missing, surplus or of another shape, or a file is damaged.
    """
    if config.vision is None:
        return None
    tensors = open_tensors(path, config)
    own = encoder_names(tensors.names)
    weights = vision_weights(config.vision, config.hidden_size, own)
    check_tensors(tensors, weights.shapes(), weights.harmless(), tensors.names - own)
    reader = TensorReader(tensors, backend, dtype, config.vision.norm_eps)
    if isinstance(weights, QwenVisionWeights):
        parts = _qwen_parts(weights, reader, backend)
    else:
        parts = _parts(weights, reader, backend)
    nbytes = expected_encoder_bytes(config, dtype)
    return PictureEncoder(config.vision, backend, replace(parts, nbytes=nbytes))


def _held_bytes(shape: Sequence[int], dtype: str) -> int:
    """Return the memory of a tensor: matrices are held as ``dtype``, others in float32."""
    return math.prod(shape) * (DTYPE_BYTES[dtype] if len(shape) > 1 else 4)


def _parts(weights: VisionWeights, reader: TensorReader, backend: Backend) -> EncoderParts:
    """Read a CLIP or SigLIP."""
    config = weights.config
    first, last = weights.first_norm(), weights.last_norm()
    projector = _projector(weights, reader, backend)
    joiner = None
    if config.joins_tiles:
        joiner = TileJoiner(backend, projector, reader.floats(weights.newline))
    # The convolution's steps are as wide as its patches: it is a linear.
    values = reader.floats(weights.patches).reshape(config.hidden_size, -1)
    return EncoderParts(
        patches=reader.matrix(weights.patches, values, weights.patch_bias),
        class_token=reader.floats(weights.class_token)[None] if config.has_class_token else None,
        positions=reader.floats(weights.positions),
        first_norm=None if first is None else reader.norm(first),
        layers=_layers(weights, reader),
        last_norm=None if last is None else reader.norm(last),
        projector=projector,
        joiner=joiner,
        rope=None,
        nbytes=0,
    )


def _qwen_parts(weights: QwenVisionWeights, reader: TensorReader, backend: Backend) -> EncoderParts:
    config = weights.config
    # Both frames show the same picture: their weights are added.
    values = reader.floats(weights.patches).sum(2).reshape(config.hidden_size, -1)
    norm, first, second = weights.projector()
    return EncoderParts(
        patches=reader.matrix(weights.patches, values),
        class_token=None,
        positions=None,
        first_norm=None,
        layers=_layers(weights, reader),
        last_norm=None,
        projector=MlpProjector(
            backend, reader.linear(first), reader.linear(second), "gelu", reader.norm(norm)
        ),
        joiner=None,
        rope=_places(config, backend),
        nbytes=0,
    )


def _layers(weights: VisionWeights | QwenVisionWeights, reader: TensorReader) -> list[EncoderLayer]:
    config = weights.config

    def read(layer: VisionLayerWeights) -> EncoderLayer:
        return EncoderLayer(
            attention_norm=reader.norm(layer.attention_norm),
            qkv=reader.linear(layer.qkv),
            output=reader.linear(layer.output),
            mlp_norm=reader.norm(layer.mlp_norm),
            up=reader.linear(layer.up),
            down=reader.linear(layer.down),
            activation=config.activation,
            gated=config.gated_mlp,
        )

    return [read(weights.layer(number)) for number in range(config.num_layers)]


def _projector(weights: VisionWeights, reader: TensorReader, backend: Backend) -> Projector:
    config = weights.config
    if config.projector == "mlp":
        first, second = map(reader.linear, weights.mlp_projector())
        return MlpProjector(backend, first, second, config.projector_activation)
    if config.projector == "shuffled":
        linear = reader.linear(weights.shuffled_projector())
        return SquaresProjector(backend, linear, config.merge)
    norm, name = weights.pooled_projector()
    linear = reader.matrix(name, reader.floats(name).T)
    return SquaresProjector(backend, linear, config.merge, reader.norm(norm, 1.0))


def _places(config: VisionConfig, backend: Backend) -> tuple[Array, Array]:
    """Return cosines and sines of the longest edge: half of the pairs turn by rows, half by
    columns, at the same speeds."""
    edge = config.patch_size * config.merge
    longest = config.merge * (config.input.max_pixels // edge**2 + 1)
    half = config.hidden_size // config.num_heads // 2
    tables = rope_tables(RopeConfig(theta=10_000.0, rotary_dim=half), longest)
    cosines, sines = (np.concatenate([table, table], axis=1) for table in tables)
    return backend.from_numpy(cosines), backend.from_numpy(sines)
