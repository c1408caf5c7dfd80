"""Tensors of the encoder of Qwen2-VL and Qwen2.5-VL, with shapes.

W width of the encoder, I width of its MLP, P patch edge, D model dim of the decoder, M patches that
become a row.
"""

from __future__ import annotations

from quire.core.model.vision_config import VisionConfig
from quire.models.vision.weights import VisionLayerWeights
from quire.models.weight_map import LinearWeights, NormWeights

PREFIX = "visual."
#: Pictures of a video that a patch is of; a picture is shown as often.
FRAMES = 2


class QwenVisionWeights:
    """The tensors by their use.

    Args:
        config: The encoder's shape.
        width: D.
    """

    def __init__(self, config: VisionConfig, width: int) -> None:
        self.config = config
        self._width = width

    @property
    def patches(self) -> str:
        """(W, 3, FRAMES, P, P)."""
        return f"{PREFIX}patch_embed.proj.weight"

    def layer(self, number: int) -> VisionLayerWeights:
        """Return a layer."""
        config, start = self.config, f"{PREFIX}blocks.{number}."
        width, inner = config.hidden_size, config.intermediate_size
        gated = config.gated_mlp
        up = ("gate_proj", "up_proj") if gated else ("fc1",)
        modules = tuple(f"{start}mlp.{name}" for name in up)
        down = f"{start}mlp.{'down_proj' if gated else 'fc2'}"
        return VisionLayerWeights(
            self._norm(f"{start}norm1"),
            LinearWeights((f"{start}attn.qkv",), (3 * width,), width, True),
            LinearWeights((f"{start}attn.proj",), (width,), width, True),
            self._norm(f"{start}norm2"),
            LinearWeights(modules, (inner,) * len(modules), width, True),
            LinearWeights((down,), (width,), inner, True),
        )

    def projector(self) -> tuple[NormWeights, LinearWeights, LinearWeights]:
        """(W,), (M W, M W) and (D, M W)."""
        start, merged = f"{PREFIX}merger.", self.config.merge**2 * self.config.hidden_size
        return (
            self._norm(f"{start}ln_q"),
            LinearWeights((f"{start}mlp.0",), (merged,), merged, True),
            LinearWeights((f"{start}mlp.2",), (self._width,), merged, True),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor that is taken."""
        config = self.config
        patch = (config.patch_size, config.patch_size)
        shapes: dict[str, tuple[int, ...]] = {self.patches: (config.hidden_size, 3, FRAMES, *patch)}
        parts: list[LinearWeights | NormWeights] = [*self.projector()]
        for number in range(config.num_layers):
            layer = self.layer(number)
            parts += [layer.attention_norm, layer.qkv, layer.output]
            parts += [layer.mlp_norm, layer.up, layer.down]
        return shapes | dict(pair for part in parts for pair in part.shapes())

    def harmless(self) -> tuple[str, ...]:
        """Return regular expressions of tensors that may be there and are not needed."""
        return (r"visual\.rotary_pos_emb\.inv_freq",)

    def _norm(self, module: str) -> NormWeights:
        return NormWeights(module, (self.config.hidden_size,), not self.config.rms_norm)
