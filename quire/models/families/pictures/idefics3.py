"""Idefics3 and SmolVLM: a Llama with an encoder of the tiles of a picture."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.families import llama
from quire.models.families.pictures import llava
from quire.models.families.pictures.nested_decoder import read_nested
from quire.models.vision.encoder_config import read_idefics3_vision

_LLAMA = llava.DECODERS["llama"]
#: Files leave out what is as transformers has it.
DECODERS = {"llama": replace(_LLAMA, defaults={**_LLAMA.defaults, "rms_norm_eps": 1e-5})}
_PREFIX = "model.text_model."
NAMES = replace(
    llama.NAMES,
    layer=_PREFIX + "layers.{layer}.",
    embedding=_PREFIX + "embed_tokens",
    final_norm=_PREFIX + "norm",
)


def read_idefics3(config: ConfigFields) -> ModelConfig:
    """Read an Idefics3ForConditionalGeneration or a SmolVLMForConditionalGeneration."""
    config.has("_pad_token_id")
    return read_nested(config, DECODERS, "llama", read_idefics3_vision)
