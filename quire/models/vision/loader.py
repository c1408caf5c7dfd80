"""A checkpoint's picture encoder, read and packed; the decoder has a loader of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from quire.core.kv_cache_spec import DTYPE_BYTES
from quire.core.model_config import ModelConfig
from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.host_tensor import HostTensor
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.models.tensor_source import TensorSource, check_tensors, open_tensors
from quire.models.vision.encoder import (
    EncoderLayer,
    EncoderParts,
    FloatArray,
    PictureEncoder,
)
from quire.models.vision.projectors import MlpProjector, PooledProjector, Projector
from quire.models.vision.weights import VisionWeights
from quire.models.weight_map import LinearWeights, NormWeights

#: First parts of the names of an encoder's tensors.
PREFIXES = ("vision_tower.", "multi_modal_projector.")


def encoder_names(names: Collection[str]) -> set[str]:
    """Return which of a checkpoint's tensors are its encoder's."""
    return {name for name in names if name.startswith(PREFIXES)}


def expected_encoder_bytes(config: ModelConfig, dtype: str) -> int:
    """Return what an encoder will take, in bytes; 0 for a model that has none."""
    if config.vision is None:
        return 0
    shapes = VisionWeights(config.vision, config.hidden_size, ()).shapes()
    return sum(_held_bytes(shape, dtype) for shape in shapes.values())


def load_encoder(
    path: Path, config: ModelConfig, backend: Backend, dtype: str
) -> PictureEncoder | None:
    """Load the encoder of a model that reads pictures; None for one that does not.

    Args:
        path: The checkpoint.
        config: The model's.
        backend: Packs and computes.
        dtype: Type its matrices are held in.

    Raises:
        ModelLoadError: A tensor is missing, surplus or of another shape, or a file is damaged.
    """
    if config.vision is None:
        return None
    tensors = open_tensors(path, config)
    own = encoder_names(tensors.names)
    weights = VisionWeights(config.vision, config.hidden_size, own)
    check_tensors(tensors, weights.shapes(), weights.harmless(), tensors.names - own)
    parts = _Reader(tensors, weights, backend, dtype).parts()
    return PictureEncoder(config.vision, backend, parts)


def _held_bytes(shape: Sequence[int], dtype: str) -> int:
    """Return the memory of a tensor: matrices are held as ``dtype``, others in float32."""
    return math.prod(shape) * (DTYPE_BYTES[dtype] if len(shape) > 1 else 4)


class _Reader:
    """Takes tensors and gives their pages back."""

    def __init__(
        self, tensors: TensorSource, weights: VisionWeights, backend: Backend, dtype: str
    ) -> None:
        self._tensors, self._weights = tensors, weights
        self._backend, self._dtype = backend, dtype

    def parts(self) -> EncoderParts:
        """Read all of it."""
        weights, config = self._weights, self._weights.config
        first, layers = weights.first_norm(), []
        for number in range(config.num_layers):
            layer = weights.layer(number)
            layers.append(
                EncoderLayer(
                    self._norm(layer.attention_norm),
                    self._linear(layer.qkv),
                    self._linear(layer.output),
                    self._norm(layer.mlp_norm),
                    self._linear(layer.up),
                    self._linear(layer.down),
                    config.activation,
                )
            )
        last = weights.last_norm()
        return EncoderParts(
            patches=self._patches(),
            class_token=self._floats(weights.class_token)[None] if config.has_class_token else None,
            positions=self._floats(weights.positions),
            first_norm=None if first is None else self._norm(first),
            layers=layers,
            last_norm=None if last is None else self._norm(last),
            projector=self._projector(),
            nbytes=sum(_held_bytes(shape, self._dtype) for shape in weights.shapes().values()),
        )

    def _projector(self) -> Projector:
        weights, config, backend = self._weights, self._weights.config, self._backend
        if config.projector == "mlp":
            first, second = map(self._linear, weights.mlp_projector())
            return MlpProjector(backend, first, second, config.projector_activation)
        norm, name = weights.pooled_projector()
        scale = HostTensor(norm.module, "float32", self._floats(f"{norm.module}.weight") + 1)
        matrix = HostTensor(name, "float32", np.ascontiguousarray(self._floats(name).T))
        return PooledProjector(
            backend,
            RMSNorm(backend, backend.parameter(scale), config.norm_eps),
            backend.linear([matrix], [], dtype=self._dtype),
            config.merge,
        )

    def _patches(self) -> Linear:
        """Make the convolution, whose steps are as wide as its patches, a linear."""
        weights = self._weights
        tensor = self._tensors.tensor(weights.patches)
        assert isinstance(tensor, HostTensor), "only two dimensions are ever quantized"
        matrix = replace(tensor, array=tensor.array.reshape(tensor.shape[0], -1))
        biases = []
        if weights.patch_bias is not None:
            biases = [self._copied(weights.patch_bias)]
        made = self._backend.linear([matrix], biases, dtype=self._dtype)
        self._tensors.release(weights.patches)
        return made

    def _linear(self, weights: LinearWeights) -> Linear:
        matrices = []
        for module in weights.modules:
            tensor = self._tensors.tensor(f"{module}.weight")
            floats = isinstance(tensor, HostTensor)
            matrices.append(tensor if floats else self._copied(f"{module}.weight"))
        names = [f"{module}.bias" for module in weights.modules if weights.bias]
        biases = [self._copied(name) for name in names]
        made = self._backend.linear(matrices, biases, dtype=self._dtype)
        for module in weights.modules:
            self._tensors.release(f"{module}.weight")
        return made

    def _norm(self, weights: NormWeights) -> Norm:
        weight, bias = (self._parameter(name) for name, _ in weights.shapes())
        return LayerNorm(self._backend, weight, bias, self._weights.config.norm_eps)

    def _parameter(self, name: str) -> Array:
        return self._backend.parameter(self._copied(name))

    def _copied(self, name: str) -> HostTensor:
        return HostTensor(name, "float32", self._floats(name))

    def _floats(self, name: str) -> FloatArray:
        """Return a tensor's values, a copy of our own, so that the file need not stay mapped."""
        values: FloatArray = np.array(self._tensors.tensor(name).float32(), np.float32)
        self._tensors.release(name)
        return values
