"""Tensors of a picture encoder, with shapes.

W width of the encoder, I width of its MLP, P patch edge, D model dim of the decoder.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from quire.core.model.vision_config import VisionConfig
from quire.models.weight_map import LinearWeights, NormWeights

#: Parts of the encoder that give nothing to the features.
HARMLESS = (
    r"vision_tower\.(vision_model\.)?head\..*",
    r"vision_tower\.(vision_model\.)?post_layernorm\..*",
    r"vision_tower\.(vision_model\.)?embeddings\.position_ids",
)
PREFIX = "vision_tower."
IDEFICS3_PREFIX = "model.vision_model."
_PROJECTOR = "multi_modal_projector."
#: Checkpoints of transformers 4 have it in all names of the encoder.
OPTIONAL = "vision_model."


@dataclass(frozen=True, slots=True)
class VisionLayerWeights:
    """One layer of the encoder."""

    attention_norm: NormWeights
    qkv: LinearWeights
    output: LinearWeights
    mlp_norm: NormWeights
    up: LinearWeights
    down: LinearWeights


class VisionWeights:
    """The tensors of an encoder and its projector, by their use.

    Args:
        config: Configuration of the encoder.
        width: D.
        stored: Names of all tensors of the checkpoint.

    Attributes:
        class_token: (W,).
        positions: (patches, and one for a class token, W).
        patches: (W, 3, P, P).
        patch_bias: (W,); None for CLIP.
        newline: (D,), the end of each row of joined tiles.
    """

    def __init__(self, config: VisionConfig, width: int, stored: Collection[str]) -> None:
        self.config = config
        self._width = width
        longer = f"{PREFIX}{OPTIONAL}"
        has_longer = any(name.startswith(longer) for name in stored)
        self._prefix = longer if has_longer else PREFIX
        if config.projector == "shuffled":
            self._prefix = IDEFICS3_PREFIX
        embeddings = f"{self._prefix}embeddings."
        self.class_token = f"{embeddings}class_embedding"
        self.positions = f"{embeddings}position_embedding.weight"
        self.patches = f"{embeddings}patch_embedding.weight"
        has_bias = config.kind != "clip"
        self.patch_bias = f"{embeddings}patch_embedding.bias" if has_bias else None
        self.newline = "image_newline"

    def first_norm(self) -> NormWeights | None:
        """(W,), before the layers; SigLIP has none."""
        # The name is misspelled in every checkpoint.
        return self._norm("pre_layrnorm") if self.config.kind == "clip" else None

    def layer(self, number: int) -> VisionLayerWeights:
        """Return one of the ``num_layers`` that are computed."""
        config, start = self.config, f"encoder.layers.{number}."
        width, inner = config.hidden_size, config.intermediate_size
        attention = tuple(f"{start}self_attn.{name}_proj" for name in "qkv")
        return VisionLayerWeights(
            self._norm(f"{start}layer_norm1"),
            self._linear(attention, width, width),
            self._linear((f"{start}self_attn.out_proj",), width, width),
            self._norm(f"{start}layer_norm2"),
            self._linear((f"{start}mlp.fc1",), inner, width),
            self._linear((f"{start}mlp.fc2",), width, inner),
        )

    def last_norm(self) -> NormWeights | None:
        """(W,), after the layers, or None."""
        return self._norm("post_layernorm") if self.config.last_norm else None

    def mlp_projector(self) -> tuple[LinearWeights, LinearWeights]:
        """(D, W) and (D, D)."""
        width, bias = self._width, self.config.projector_bias
        first, second = (f"{_PROJECTOR}linear_{number}" for number in (1, 2))
        return (
            LinearWeights((first,), (width,), self.config.hidden_size, bias),
            LinearWeights((second,), (width,), width, bias),
        )

    def pooled_projector(self) -> tuple[NormWeights, str]:
        """(W,), whose values are less 1, and the name of a matrix (W, D)."""
        norm = NormWeights(f"{_PROJECTOR}mm_soft_emb_norm", (self.config.hidden_size,), False)
        return norm, f"{_PROJECTOR}mm_input_projection_weight"

    def shuffled_projector(self) -> LinearWeights:
        """(D, M W), M patches of a square."""
        merged = self.config.merge**2 * self.config.hidden_size
        name = "model.connector.modality_projection.proj"
        return LinearWeights((name,), (self._width,), merged)

    def _projector_shapes(self) -> dict[str, tuple[int, ...]]:
        if self.config.projector == "pooled":
            norm, matrix = self.pooled_projector()
            return {**dict(norm.shapes()), matrix: (self.config.hidden_size, self._width)}
        if self.config.projector == "shuffled":
            return dict(self.shuffled_projector().shapes())
        return dict(pair for part in self.mlp_projector() for pair in part.shapes())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor that is taken."""
        config = self.config
        width, patch = config.hidden_size, config.patch_size
        rows = config.num_patches + config.has_class_token
        shapes: dict[str, tuple[int, ...]] = {
            self.patches: (width, 3, patch, patch),
            self.positions: (rows, width),
        }
        if config.has_class_token:
            shapes[self.class_token] = (width,)
        if self.patch_bias is not None:
            shapes[self.patch_bias] = (width,)
        if config.joins_tiles:
            shapes[self.newline] = (self._width,)
        parts: list[LinearWeights | NormWeights] = []
        parts += [norm for norm in (self.first_norm(), self.last_norm()) if norm is not None]
        for number in range(config.num_layers):
            layer = self.layer(number)
            parts += [layer.attention_norm, layer.qkv, layer.output]
            parts += [layer.mlp_norm, layer.up, layer.down]
        shapes |= dict(pair for part in parts for pair in part.shapes())
        return shapes | self._projector_shapes()

    def harmless(self) -> tuple[str, ...]:
        """Return regular expressions of tensors that may be there and are not needed."""
        config = self.config
        later = range(config.num_layers, config.num_stored_layers)
        layers = tuple(rf".*encoder\.layers\.{number}\..*" for number in later)
        return (*HARMLESS, *layers)

    def _norm(self, name: str) -> NormWeights:
        return NormWeights(f"{self._prefix}{name}", (self.config.hidden_size,), True)

    def _linear(self, names: tuple[str, ...], rows: int, columns: int) -> LinearWeights:
        modules = tuple(f"{self._prefix}{name}" for name in names)
        return LinearWeights(modules, (rows,) * len(names), columns, True)
