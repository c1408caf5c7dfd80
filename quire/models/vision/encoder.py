"""A loaded picture encoder: pixels to rows of the decoder's residual stream.

B pictures, S rows of one (patches, and a class token), W width of the encoder, N heads, H head dim,
P patch edge, D model dim. Each picture is computed alone, so what comes out does not depend on the
others of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.vision_config import PictureShape, VisionConfig
from quire.kernels.backend import Array, Backend, Linear
from quire.layers.norm import Norm

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """The parts of one layer; ``qkv`` is W to 3 W."""

    attention_norm: Norm
    qkv: Linear
    output: Linear
    mlp_norm: Norm
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class EncoderParts:
    """What the loader made.

    Attributes:
        patches: 3 P P to W.
        class_token: (1, W) float32 on the host, or None.
        positions: (S, W) float32 on the host.
        first_norm: Before the layers, or None.
        layers: Those that are computed.
        projector: W to D and D to D.
        nbytes: Memory of all of it.
    """

    patches: Linear
    class_token: FloatArray | None
    positions: FloatArray
    first_norm: Norm | None
    layers: Sequence[EncoderLayer]
    projector: tuple[Linear, Linear]
    nbytes: int


class PictureEncoder:
    """CLIP or SigLIP with LLaVA's projector.

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Liu et al. 2023 (LLaVA).
    """

    def __init__(self, config: VisionConfig, backend: Backend, parts: EncoderParts) -> None:
        self.config = config
        self._backend = backend
        self._parts = parts

    def encode(self, pixels: npt.NDArray[np.uint8]) -> Array:
        """Return the rows of one picture.

        Args:
            pixels: (height, width, 3), red, green and blue, of the sizes in ``config.input``.

        Returns:
            (num_tokens, D), of the backend's ``activation_dtype``, on its device.
        """
        config, backend, parts = self.config, self._backend, self._parts
        patches = cut_patches(pixels, config.input, config.patch_size)
        rows = self._host(parts.patches(self._device(patches)))
        if parts.class_token is not None:
            rows = np.concatenate([parts.class_token, rows])
        residual = self._device(rows + parts.positions)
        if parts.first_norm is not None:
            residual = parts.first_norm(residual, backend.empty(rows.shape, self._dtype))
        for layer in parts.layers:
            self._run(layer, residual)
        if config.drops_class_token and parts.class_token is not None:
            residual = self._device(np.ascontiguousarray(self._host(residual)[1:]))
        first, second = parts.projector
        return second(self._act(first(residual), config.projector_activation))

    @property
    def nbytes(self) -> int:
        """Memory of its weights."""
        return self._parts.nbytes

    @property
    def _dtype(self) -> str:
        return self._backend.activation_dtype

    def _run(self, layer: EncoderLayer, residual: Array) -> None:
        """Add what a layer gives to the residual stream."""
        backend = self._backend
        normed = layer.attention_norm(residual, backend.empty(residual.shape, self._dtype))
        attended = attend(self._host(layer.qkv(normed)), self.config.num_heads)
        backend.add_residual(layer.output(self._device(attended)), residual)
        normed = layer.mlp_norm(residual, normed)
        inner = self._act(layer.up(normed), self.config.activation)
        backend.add_residual(layer.down(inner), residual)

    def _act(self, x: Array, activation: str) -> Array:
        if activation != "quick_gelu":
            return self._backend.activation(x, activation, x)
        return self._device(quick_gelu(self._host(x)))

    def _host(self, x: Array) -> FloatArray:
        found: FloatArray = np.asarray(self._backend.to_numpy(x), np.float32)
        return found

    def _device(self, x: FloatArray) -> Array:
        return self._backend.from_numpy(x)


def cut_patches(pixels: npt.NDArray[np.uint8], shape: PictureShape, patch_size: int) -> FloatArray:
    """Return a picture's patches as rows, their values rescaled and normed.

    Args:
        pixels: (height, width, 3); what is left over at the right and bottom edge is not used.
        shape: How values change.
        patch_size: P.

    Returns:
        (patches, 3 P P): all of a patch's red values, row by row, then green, then blue.
    """
    mean, std = np.array(shape.mean, np.float32), np.array(shape.std, np.float32)
    values = (pixels.astype(np.float32) * np.float32(shape.rescale) - mean) / std
    down, across = pixels.shape[0] // patch_size, pixels.shape[1] // patch_size
    values = values[: down * patch_size, : across * patch_size]
    cut = values.reshape(down, patch_size, across, patch_size, 3).transpose(0, 2, 4, 1, 3)
    rows: FloatArray = np.ascontiguousarray(cut.reshape(down * across, -1), np.float32)
    return rows


def attend(qkv: FloatArray, num_heads: int) -> FloatArray:
    """Return attention in which every row sees every row: (S, 3 W) to (S, W)."""
    num_rows, width = qkv.shape[0], qkv.shape[1] // 3
    size = width // num_heads
    scale = np.float32(size**-0.5)
    attended = np.empty((num_rows, width), np.float32)
    # A head at a time: its scores stay in the caches.
    for start in range(0, width, size):
        query, key, value = (
            np.ascontiguousarray(qkv[:, first : first + size])
            for first in (start, width + start, 2 * width + start)
        )
        scores = (query * scale) @ key.T
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(-1, keepdims=True)
        attended[:, start : start + size] = (scores @ value) / total
    return attended


def quick_gelu(x: FloatArray) -> FloatArray:
    """Return ``x / (1 + exp(-1.702 x))``; source: Hendrycks and Gimpel 2016."""
    with np.errstate(over="ignore"):  # far below zero it is zero
        found: FloatArray = x / (1 + np.exp(np.float32(-1.702) * x))
    return found
