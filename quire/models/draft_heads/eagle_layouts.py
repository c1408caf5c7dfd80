"""Names of the tensors of an EAGLE head in its published layouts.

Sources: SafeAILab's checkpoints of EAGLE, and those of ``speculators`` (EAGLE and HASS), whose
``layernorms`` adds a norm of the embedding, one before the attention and one before the output.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ModelLoadError
from quire.models.draft_heads.head_tensors import HeadTensors

MIX = "fc"
SPECULATORS_MIX = "fusion_fc"
#: Layers of transformers that a head's layer can be.
DECODER_LAYERS = tuple(f"{name}DecoderLayer" for name in ("Llama", "Mistral", "Qwen2", "Qwen3"))


@dataclass(frozen=True, slots=True)
class EagleLayout:
    """Names of a head's parts, without ``.weight``.

    Attributes:
        mix: Module of the matrix from 2 D to D.
        layer: Prefix of the names of the layer's tensors.
        mix_has_bias: Whether that matrix must have a bias.
        embed_norm, input_norm, last_norm: Norms of the embedding, before the attention and before
            the output; all of them or None.
    """

    mix: str
    layer: str
    mix_has_bias: bool
    embed_norm: str | None = None
    input_norm: str | None = None
    last_norm: str | None = None

    @property
    def norms(self) -> list[str]:
        """Norms that the layout has beyond that before the feed-forward part."""
        return [name for name in (self.embed_norm, self.input_norm, self.last_norm) if name]


def find_layout(tensors: HeadTensors) -> EagleLayout:
    """Return the layout of a head; whether it has its tensors is for the caller to check.

    Raises:
        ModelLoadError: The layer is of a kind that cannot be computed.
    """
    if f"{SPECULATORS_MIX}.weight" not in tensors.names:
        return EagleLayout(MIX, "layers.0.", f"{MIX}.bias" in tensors.names)
    config = tensors.config
    kind = config.text("transformer_layer_architecture", "auto")
    if kind not in ("auto", *DECODER_LAYERS):
        raise ModelLoadError(
            f"[load] {config.where}: transformer_layer_architecture must be auto or one of "
            f"{', '.join(DECODER_LAYERS)}; got {kind!r:.80}."
        )
    layer, has_bias = "transformer.", config.boolean("fusion_bias", False)
    if not config.boolean("layernorms", False):
        return EagleLayout(SPECULATORS_MIX, layer, has_bias)
    norms = ("embedding_layernorm", f"{layer}input_layernorm", "pre_lm_head_layernorm")
    return EagleLayout(SPECULATORS_MIX, layer, has_bias, *norms)
