"""A loaded picture encoder: pixels to rows of the decoder's residual stream.

B pictures, T rows of all of them (patches, and a class token each), W width of the encoder, N
heads, P patch edge, D model dim. Pictures of a call share the matrices' products and nothing else:
each one's rows are the same, bit for bit, whatever it is encoded with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.model.picture_tiling import Tiling
from quire.core.model.vision_config import PictureShape, VisionConfig
from quire.kernels.backend import Array, Backend, Linear
from quire.layers.norm import Norm
from quire.models.vision.attention import SpanAttention, SpanPart
from quire.models.vision.patch_layout import PatchLayout, lay_out
from quire.models.vision.projectors import Projector
from quire.models.vision.slices import Slices, cut_rows, norm_in_place
from quire.models.vision.tiles import TileJoiner

FloatArray = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]

#: Patches of pictures and tiles that are encoded together, but for a picture that has more.
BATCH_PATCHES = 4096


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer; ``qkv`` is W to 3 W, and ``up`` to gate and up where the MLP is gated."""

    attention_norm: Norm
    qkv: Linear
    output: Linear
    mlp_norm: Norm
    up: Linear
    down: Linear
    activation: str
    gated: bool = False

    def run(
        self,
        backend: Backend,
        attention: SpanAttention,
        plan: Sequence[SpanPart],
        residual: Array,
    ) -> Slices[None]:
        """Add what the layer gives to the residual stream (T, W)."""
        num_rows, width = residual.shape
        qkv = backend.empty((num_rows, 3 * width), backend.activation_dtype)
        for rows in cut_rows(num_rows, 3 * width * width):
            normed = backend.empty(residual[rows].shape, backend.activation_dtype)
            self.qkv(self.attention_norm(residual[rows], normed), qkv[rows])
            yield
        attended = backend.empty(residual.shape, backend.activation_dtype)
        yield from attention.run(qkv, plan, attended)
        for rows in cut_rows(num_rows, (width + 2 * self.up.out_features) * width):
            part = residual[rows]
            backend.add_residual(self.output(attended[rows]), part)
            inner = self._activated(backend, self.up(self.mlp_norm(part, attended[rows])))
            backend.add_residual(self.down(inner), part)
            yield

    def _activated(self, backend: Backend, inner: Array) -> Array:
        if not self.gated:
            return backend.activation(inner, self.activation, inner)
        out = backend.empty((inner.shape[0], inner.shape[1] // 2), backend.activation_dtype)
        return backend.gated_activation(inner, self.activation, out)


@dataclass(frozen=True, slots=True)
class EncoderParts:
    """The parts of an encoder, as the loader made them.

    Attributes:
        patches: Linear from 3 P P to W.
        class_token: (1, W) float32 on the host, or None.
        positions: (S, W) float32 on the host, or None.
        first_norm: Norm before the layers, or None.
        layers: Layers that are computed.
        last_norm: Norm after the layers, or None.
        projector: Projector from W to D.
        joiner: Joiner that makes one picture of tiles; None where there are none.
        rope: Cosines and sines of places, each (places, H / 2); None where positions are learned.
        nbytes: Bytes of all parts.
    """

    patches: Linear
    class_token: FloatArray | None
    positions: FloatArray | None
    first_norm: Norm | None
    layers: Sequence[EncoderLayer]
    last_norm: Norm | None
    projector: Projector
    joiner: TileJoiner | None
    rope: tuple[Array, Array] | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class Features:
    """The layers' output for a picture: (S, W), its numbers down and across, and its layout."""

    rows: Array
    grid: tuple[int, int]
    layout: PatchLayout | None


class PictureEncoder:
    """CLIP, SigLIP or Qwen's encoder, with a projector.

    Source: Radford et al. 2021 (CLIP), Zhai et al. 2023 (SigLIP), Wang et al. 2024 (Qwen2-VL).
    """

    def __init__(self, config: VisionConfig, backend: Backend, parts: EncoderParts) -> None:
        self.config = config
        self._backend = backend
        self._parts = parts
        head_dim = config.hidden_size // config.num_heads
        self._attention = SpanAttention(
            backend,
            config.num_heads,
            head_dim,
            parts.rope,
            (head_dim // 4, head_dim // 4) if parts.rope else (),
        )

    def encode(
        self, pictures: Sequence[Pixels], tilings: Sequence[Tiling | None] = ()
    ) -> Slices[list[Array]]:
        """Make the rows of pictures together; see :func:`~quire.models.vision.slices.finish`.

        Args:
            pictures: Each (height, width, 3), red, green and blue, of the sizes in
                ``config.input``; where tiles are joined, one above the other.
            tilings: Tiling of each picture, where tiles are joined.

        Returns:
            (num_tokens, D) for each, of the backend's ``activation_dtype``, on its device.
        """
        if self._parts.joiner is None:
            features = yield from self._features(pictures)
            return (yield from self._project(features))
        found = []
        for pixels, tiling in zip(pictures, tilings, strict=True):
            assert tiling is not None, "tiles without a tiling"
            tiles = list(pixels.reshape(-1, pixels.shape[1], *pixels.shape[1:]))
            step = max(1, BATCH_PATCHES // self.config.num_patches)
            parts = []
            for first in range(0, len(tiles), step):
                parts += yield from self._features(tiles[first : first + step])
            features = [part.rows for part in parts]
            found.append((yield from self._parts.joiner.join(features, tiling)))
        return found

    def _features(self, pictures: Sequence[Pixels]) -> Slices[list[Features]]:
        """Return what the layers make of pictures that are encoded together."""
        config, backend, parts = self.config, self._backend, self._parts
        patch = config.patch_size
        grids = [(p.shape[0] // patch, p.shape[1] // patch) for p in pictures]
        layouts = [lay_out(*grid, config) if parts.rope else None for grid in grids]
        lengths = [down * across + config.has_class_token for down, across in grids]
        residual = yield from self._embed(pictures, layouts, lengths)
        if parts.first_norm is not None:
            yield from norm_in_place(parts.first_norm, residual)
        plans = self._plans(lengths, layouts)
        yield
        for number, layer in enumerate(parts.layers):
            is_windowed = config.window_size > 0 and number not in config.full_layers
            yield from layer.run(backend, self._attention, plans[is_windowed], residual)
        drops = int(config.drops_class_token and config.has_class_token)
        found, start = [], drops
        for length, grid, layout in zip(lengths, grids, layouts, strict=True):
            rows = residual[start : start + length - drops]
            start += length
            if parts.last_norm is not None:
                yield from norm_in_place(parts.last_norm, rows)
            found.append(Features(rows, grid, layout))
        return found

    def _project(self, features: Sequence[Features]) -> Slices[list[Array]]:
        """Return the rows of each picture."""
        found = []
        for one in features:
            rows = yield from self._parts.projector.project(one.rows, *one.grid)
            if one.layout is not None:
                rows = self._backend.from_numpy(
                    np.asarray(self._backend.to_numpy(rows))[one.layout.places]
                )
            found.append(rows)
        return found

    @property
    def width(self) -> int:
        """D."""
        return self._parts.projector.width

    @property
    def nbytes(self) -> int:
        """Memory of its weights."""
        return self._parts.nbytes

    def _plans(
        self, lengths: Sequence[int], layouts: Sequence[PatchLayout | None]
    ) -> tuple[Sequence[SpanPart], Sequence[SpanPart]]:
        """Return plans of layers in which rows see all of a picture, and those with windows."""
        known = [layout for layout in layouts if layout is not None]
        if not known:
            plan = self._attention.plan(lengths)
            return plan, plan
        positions = np.concatenate([layout.positions for layout in known], axis=1)
        windows = [length for layout in known for length in layout.windows]
        return (
            self._attention.plan(lengths, positions),
            self._attention.plan(windows, positions) if self.config.window_size else (),
        )

    def _embed(
        self,
        pictures: Sequence[Pixels],
        layouts: Sequence[PatchLayout | None],
        lengths: Sequence[int],
    ) -> Slices[Array]:
        """Return the rows before the layers, (T, W)."""
        config, parts = self.config, self._parts
        residual = np.empty((sum(lengths), config.hidden_size), np.float32)
        start = 0
        for pixels, layout, length in zip(pictures, layouts, lengths, strict=True):
            own = residual[start : start + length]
            start += length
            patches = patches_of(pixels, config.patch_size)
            order = np.arange(length - config.has_class_token) if layout is None else layout.order
            if parts.class_token is not None:
                own[:1] = parts.class_token
            for rows in cut_rows(len(order), config.hidden_size * 3 * config.patch_size**2):
                cut = patches[np.divmod(order[rows], patches.shape[1])]
                values = self._backend.from_numpy(normed(cut, config.input))
                at = slice(rows.start + config.has_class_token, rows.stop + config.has_class_token)
                own[at] = self._backend.to_numpy(parts.patches(values))
                yield
            if parts.positions is not None:
                own += parts.positions
        return self._backend.from_numpy(residual)


def patches_of(pixels: Pixels, patch_size: int) -> Pixels:
    """Return a view of a picture as patches, (down, across, 3, P, P): red, green, blue of each.

    Args:
        pixels: (height, width, 3); what is left over at the right and bottom edge is not used.
        patch_size: P.
    """
    down, across = pixels.shape[0] // patch_size, pixels.shape[1] // patch_size
    whole = pixels[: down * patch_size, : across * patch_size]
    return whole.reshape(down, patch_size, across, patch_size, 3).transpose(0, 2, 4, 1, 3)


def normed(patches: Pixels, shape: PictureShape) -> FloatArray:
    """Return patches (T, 3, P, P) as rows (T, 3 P P), their values rescaled and normed."""
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (shape.mean, shape.std))
    values = (patches.astype(np.float32) * np.float32(shape.rescale) - mean) / std
    rows: FloatArray = values.reshape(len(patches), -1)
    return rows
