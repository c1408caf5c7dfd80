"""Qwen2-VL and Qwen2.5-VL: Qwen2 whose rotary embedding turns by time, row and column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.core.model.vision_config import VisionConfig
from quire.models.families import llama
from quire.models.families.pictures.nested_decoder import NestedDecoder, read_nested
from quire.models.vision.qwen_config import read_qwen2_5_vision, read_qwen2_vision

NAMES = llama.NAMES
#: What files leave out of the decoder's fields that is as transformers has it.
_DEFAULTS = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_window_layers": 80}
#: Of the whole model, where the decoder's fields lie among them.
_OUTER = (
    "architectures", "image_token_id", "model_type", "quantization_config", "transformers_version",
    "video_token_id", "vision_config", "vision_end_token_id", "vision_start_token_id",
    "vision_token_id",
)  # fmt: skip


def read_qwen2_vl(config: ConfigFields) -> ModelConfig:
    """Read a Qwen2VLForConditionalGeneration."""
    return _read(config, "qwen2_vl_text", read_qwen2_vision)


def read_qwen2_5_vl(config: ConfigFields) -> ModelConfig:
    """Read a Qwen2_5_VLForConditionalGeneration."""
    return _read(config, "qwen2_5_vl_text", read_qwen2_5_vision)


def _read(
    config: ConfigFields, model_type: str, read_vision: Callable[[ConfigFields], VisionConfig]
) -> ModelConfig:
    decoder = NestedDecoder(_read_decoder, "Qwen2ForCausalLM", _DEFAULTS)
    for name in _OUTER:
        config.has(name)
    if config.object("text_config") is None:  # before transformers 4.52
        text = {name: value for name, value in config.values.items() if name not in _OUTER}
        config.read.update(text)
        config = ConfigFields({**config.values, "text_config": text}, config.where)
    return read_nested(config, {model_type: decoder}, model_type, read_vision)


def _read_decoder(config: ConfigFields) -> ModelConfig:
    """Read a Qwen2 whose rotary embedding has sections."""
    values, sections = dict(config.values), None
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := values.get(name), Mapping):
            plain: dict[str, Any] = dict(rope)
            sections = plain.pop("mrope_section", sections)
            for kind in ("type", "rope_type"):
                if plain.get(kind) == "mrope":
                    plain[kind] = "default"
            values[name] = plain
    fields = ConfigFields(values, config.where)
    made = llama.read_qwen2(fields)
    config.read |= fields.read
    assert made.rope is not None
    half = made.rope.rotary_dim // 2
    if not isinstance(sections, list) or not all(type(n) is int and n >= 0 for n in sections):
        raise config.error("rope_parameters", "must have an mrope_section, a list of numbers")
    if len(sections) != 3 or sum(sections) != half:
        raise config.error(
            "rope_parameters", f"must have 3 numbers in mrope_section, {half} in all"
        )
    return replace(made, rope=replace(made.rope, sections=tuple(sections)))
