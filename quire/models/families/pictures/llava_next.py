"""LLaVA-NeXT and LLaVA-OneVision: LLaVA that reads pictures in tiles, which are joined again."""

from __future__ import annotations

import re
from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.core.model.vision_config import VisionConfig
from quire.models.families.pictures import llava
from quire.models.families.pictures.nested_decoder import read_nested
from quire.models.vision.encoder_config import read_tiled_vision

NAMES = llava.NAMES
_NEXT_GRIDS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
_EDGES = range(384, 2305, 384)
_ONEVISION = {
    "image_token_index": 151646,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
}


def read_llava_next(config: ConfigFields) -> ModelConfig:
    """Read a LlavaNextForConditionalGeneration (LLaVA 1.6)."""
    made = read_nested(config, llava.DECODERS, "llama", _read_next_vision)
    for name in ("ignore_index", "use_image_newline_parameter"):
        config.has(name)
    return made


def read_llava_onevision(config: ConfigFields) -> ModelConfig:
    """Read a LlavaOnevisionForConditionalGeneration; videos are not read."""
    made = read_nested(config, llava.DECODERS, "qwen2", _read_onevision_vision)
    names = "ignore_index", "use_image_newline_parameter", "video_token_index", "video_token_id"
    for name in names:
        config.has(name)
    return made


def _read_next_vision(config: ConfigFields) -> VisionConfig:
    return read_tiled_vision(config, {}, _NEXT_GRIDS)


def _read_onevision_vision(config: ConfigFields) -> VisionConfig:
    grids = [(height, width) for height in _EDGES for width in _EDGES]
    made = read_tiled_vision(config, _ONEVISION, grids)
    ratio = config.text("vision_aspect_ratio", "anyres_max_9")
    found = re.fullmatch(r"anyres_max_([1-9][0-9]{0,2})", ratio)
    if found is None:
        raise config.error("vision_aspect_ratio", "must be anyres_max_N, N being 1 to 999")
    shape = replace(made.input, cut_alone=True)
    return replace(made, input=shape, most_squares=int(found[1]))
