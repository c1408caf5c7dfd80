"""Gemma 3 that reads pictures: SigLIP in front of the decoder, within which a picture's rows see
one another."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.families import gemma
from quire.models.families.pictures.nested_decoder import NestedDecoder, read_nested
from quire.models.vision.encoder_config import read_gemma3_vision

#: What files leave out of a ``text_config`` that is as in transformers' Gemma3TextConfig.
_GEMMA3 = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}
NAMES = gemma.SANDWICH_NAMES.under("language_model.")


def read_gemma3_pictures(config: ConfigFields) -> ModelConfig:
    """Read a Gemma3ForConditionalGeneration: rows of a picture see one another."""
    decoders = {"gemma3_text": NestedDecoder(gemma.read_gemma3, "Gemma3ForCausalLM", _GEMMA3)}
    made = read_nested(config, decoders, "gemma3_text", read_gemma3_vision)
    assert made.vision is not None
    if made.sliding_window is not None and made.sliding_window < made.vision.least_tokens:
        raise config.error(
            "mm_tokens_per_image", f"must be at most sliding_window ({made.sliding_window})"
        )
    return made
