"""LLaVA 1.5: a picture encoder in front of a decoder that is another family's."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.families import llama
from quire.models.families.pictures.nested_decoder import NestedDecoder, read_nested
from quire.models.vision.encoder_config import read_llava_vision

#: Old files name in text_config what differs from transformers' defaults, and no more.
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
_MISTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
}
_QWEN2 = {
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
}
DECODERS = {
    "llama": NestedDecoder(llama.read_llama, "LlamaForCausalLM", _LLAMA),
    "mistral": NestedDecoder(llama.read_mistral, "MistralForCausalLM", _MISTRAL),
    "qwen2": NestedDecoder(llama.read_qwen2, "Qwen2ForCausalLM", _QWEN2),
}
NAMES = llama.NAMES.under("language_model.")


def read_llava(config: ConfigFields) -> ModelConfig:
    """Read a LlavaForConditionalGeneration (LLaVA 1.5, BakLLaVA)."""
    made = read_nested(config, DECODERS, "llama", read_llava_vision)
    for name in ("ignore_index", "image_grid_pinpoints"):
        config.has(name)
    return made
