"""LLaVA 1.5: a picture encoder in front of a decoder that is another family's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.core.model_config import ModelConfig
from quire.models.config_fields import ConfigFields
from quire.models.families import llama
from quire.models.vision.config import read_llava_vision

#: The decoder's ``model_type`` to its reader and the class that it is otherwise stored as.
DECODERS: dict[str, tuple[Callable[[ConfigFields], ModelConfig], str]] = {
    "llama": (llama.read_llama, "LlamaForCausalLM"),
    "mistral": (llama.read_mistral, "MistralForCausalLM"),
    "qwen2": (llama.read_qwen2, "Qwen2ForCausalLM"),
}
#: What a ``text_config`` leaves out that is as transformers' LlamaConfig has it.
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


NAMES = llama.NAMES.under("language_model.")


def read_llava(config: ConfigFields) -> ModelConfig:
    """Read a LlavaForConditionalGeneration (LLaVA 1.5, BakLLaVA)."""
    text = config.object("text_config")
    if text is None:
        raise config.error("text_config", "is required")
    model_type = text.text("model_type", "llama")
    if model_type not in DECODERS:
        raise text.error("model_type", f"must be one of {', '.join(DECODERS)}")
    read, architecture = DECODERS[model_type]
    # Old files name in text_config what differs from the defaults, and no more.
    defaults = _LLAMA if model_type == "llama" else {}
    values = {**defaults, **text.values, "architectures": [architecture]}
    if config.has("tie_word_embeddings") and "tie_word_embeddings" not in text.values:
        values["tie_word_embeddings"] = config.values["tie_word_embeddings"]
    fields = ConfigFields(values, text.where)
    made = read(fields)
    fields.has("model_type")
    fields.refuse_unread()
    vision = read_llava_vision(config)
    if vision.writing.row_id >= made.vocab_size:
        raise config.error(
            "image_token_index", f"must be below the vocabulary's size ({made.vocab_size})"
        )
    for name in ("vocab_size", "ignore_index", "image_grid_pinpoints"):
        config.has(name)
    return replace(made, architecture=llama.read_architecture(config), vision=vision)
