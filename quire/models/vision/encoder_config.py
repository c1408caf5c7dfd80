"""A checkpoint's configuration of its picture encoder, read and checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.vision_config import PictureShape, VisionConfig, Writing

#: Our names of the encoders' and projectors' activations.
ACTIVATIONS = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "silu": "silu",
}
#: By ``model_type``: the kind, and transformers' defaults of activation and epsilon.
_KINDS = {
    "clip_vision_model": ("clip", "quick_gelu", 1e-5),
    "siglip_vision_model": ("siglip", "gelu_pytorch_tanh", 1e-6),
    "idefics3_vision": ("siglip", "gelu_pytorch_tanh", 1e-6),
    "idefics3": ("siglip", "gelu_pytorch_tanh", 1e-6),
    "smolvlm_vision": ("siglip", "gelu_pytorch_tanh", 1e-6),
}
_WITHOUT_EFFECT = (
    "projection_dim", "initializer_factor", "vision_use_head", "vocab_size", "size",
    "max_image_size", "tie_word_embeddings", "use_base_siglip",
)  # fmt: skip
#: Wide enough for what there is; a larger edge would be a mistake, and take gigabytes.
MAX_EDGE = 4096


def read_llava_vision(config: ConfigFields) -> VisionConfig:
    """Read the encoder of a LlavaForConditionalGeneration; ``input`` is that of no file yet.

    Raises:
        ModelLoadError: A field is missing or out of range, or the encoder is not implemented.
    """
    vision = vision_fields(config)
    strategy = config.text("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise config.error("vision_feature_select_strategy", "must be default or full")
    made = _read_encoder(vision, "clip_vision_model")
    if strategy == "default" and not made.has_class_token:
        raise config.error(
            "vision_feature_select_strategy", "must be full where there is no class token"
        )
    name = "image_token_index" if config.has("image_token_index") else "image_token_id"
    token = config.integer(name, 32000, minimum=0)
    config.has("image_seq_length")  # as many as the patches, or a mistake
    return replace(
        made,
        num_layers=_num_layers(config, made.num_stored_layers),
        writing=Writing(token, token),
        drops_class_token=strategy == "default",
        projector_activation=read_activation(config, "projector_hidden_act", "gelu"),
        projector_bias=config.boolean("multimodal_projector_bias", True),
    )


def read_tiled_vision(
    config: ConfigFields, defaults: dict[str, Any], grids: Sequence[tuple[int, int]]
) -> VisionConfig:
    """Read the encoder of a LLaVA-NeXT or LLaVA-OneVision, as :func:`read_llava_vision` does.

    Args:
        config: The model's configuration.
        defaults: Defaults of its fields, where they differ from LLaVA's.
        grids: Sizes that pictures are laid on, where the configuration names none.
    """
    made = read_llava_vision(config.changed({**defaults, **_given(config)}))
    if made.has_class_token and not made.drops_class_token:
        raise config.error("vision_feature_select_strategy", "must be default: tiles are joined")
    pinpoints = read_grids(config, made.image_size) or tuple(grids)
    edge = made.image_size
    shape = PictureShape(edge, edge, cut="grid", grids=pinpoints)
    return replace(made, input=shape, joins_tiles=True)


def read_grids(config: ConfigFields, edge: int) -> tuple[tuple[int, int], ...]:
    """Return heights and widths that pictures are laid on; none where the file names none."""
    name = "image_grid_pinpoints"
    value = config.values.get(name) if config.has(name) else []
    if not isinstance(value, list) or not all(
        isinstance(size, list)
        and len(size) == 2
        and all(type(n) is int and 0 < n <= MAX_EDGE and n % edge == 0 for n in size)
        for size in value
    ):
        raise config.error(
            name, f"must be a list of heights and widths, multiples of {edge} up to {MAX_EDGE}"
        )
    return tuple((height, width) for height, width in value)


def read_gemma3_vision(config: ConfigFields) -> VisionConfig:
    """Read the encoder of a Gemma3ForConditionalGeneration, as :func:`read_llava_vision` does."""
    made = _read_encoder(vision_fields(config), "siglip_vision_model", last_norm=True)
    num_tokens = config.integer("mm_tokens_per_image", 256)
    patches, edge = made.image_size // made.patch_size, math.isqrt(num_tokens)
    if edge**2 != num_tokens or patches % edge:
        raise config.error(
            "mm_tokens_per_image", f"must be a square whose edge divides the {patches} patches"
        )
    begin, end, row = (
        config.integer(name, default, minimum=0)
        for name, default in (
            ("boi_token_index", 255999),
            ("eoi_token_index", 256000),
            ("image_token_index", 262144),
        )
    )
    return replace(
        made,
        writing=Writing(begin, row, (begin,), (end,), "\n\n", "\n\n"),
        projector="pooled",
        merge=patches // edge,
        sees_ahead=True,
    )


def read_idefics3_vision(config: ConfigFields) -> VisionConfig:
    """Read the encoder of an Idefics3ForConditionalGeneration, or SmolVLM's, likewise."""
    fields = vision_fields(config)
    defaults = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
    vision = ConfigFields({**defaults, **fields.values}, fields.where)
    made = _read_encoder(vision, "idefics3_vision", last_norm=True)
    scale, patches = config.integer("scale_factor", 2), made.image_size // made.patch_size
    if patches % scale:
        raise config.error("scale_factor", f"must divide the {patches} patches of an edge")
    token = config.integer("image_token_id", 128257, minimum=0)
    return replace(
        made,
        writing=Writing(token, token, names_tiles=True),
        projector="shuffled",
        merge=scale,
    )


def _given(config: ConfigFields) -> dict[str, Any]:
    return {name: value for name, value in config.values.items() if value is not None}


def vision_fields(config: ConfigFields) -> ConfigFields:
    """Return the fields of the encoder."""
    vision = config.object("vision_config")
    if vision is None:
        raise config.error("vision_config", "must be given")
    return vision


def _read_encoder(vision: ConfigFields, default: str, **choices: Any) -> VisionConfig:
    """Read a CLIP or SigLIP encoder; it does not say how pictures are written in prompts.

    Args:
        vision: Fields of the encoder.
        default: The ``model_type`` where the fields name none.
        **choices: Fields of :class:`VisionConfig` in which the family differs.
    """
    model_type = vision.text("model_type", default)
    if model_type not in _KINDS:
        raise vision.error("model_type", f"must be one of {', '.join(_KINDS)}")
    kind, activation, eps = _KINDS[model_type]
    vision.require("num_channels", 3)
    stored = vision.integer("num_hidden_layers", 12)
    hidden_size = vision.integer("hidden_size", 768)
    num_heads = vision.integer("num_attention_heads", 12)
    if hidden_size % num_heads:
        raise vision.error("num_attention_heads", f"must divide hidden_size ({hidden_size})")
    default_image, default_patch = (224, 32) if kind == "clip" else (224, 16)
    image_size = vision.integer("image_size", default_image)
    patch_size = vision.integer("patch_size", default_patch)
    if image_size > MAX_EDGE:
        raise vision.error("image_size", f"must be at most {MAX_EDGE}")
    if patch_size > image_size:
        raise vision.error("patch_size", f"must be at most image_size ({image_size})")
    made = VisionConfig(
        kind=kind,
        hidden_size=hidden_size,
        num_layers=stored,
        num_heads=num_heads,
        intermediate_size=vision.integer("intermediate_size", 3072),
        image_size=image_size,
        patch_size=patch_size,
        activation=read_activation(vision, "hidden_act", activation),
        norm_eps=vision.number("layer_norm_eps", eps),
        num_stored_layers=stored,
        writing=Writing(0, 0),
        input=PictureShape(image_size, image_size),
        **choices,
    )
    for name in (*_WITHOUT_EFFECT,):
        vision.has(name)
    vision.refuse_unread()
    return made


def _num_layers(config: ConfigFields, stored: int) -> int:
    """Return after how many layers features are taken."""
    value = config.values.get("vision_feature_layer", -2)
    config.has("vision_feature_layer")
    if type(value) is not int or not -stored - 1 <= value <= stored:
        raise config.error(
            "vision_feature_layer", f"must be one number of {-stored - 1} to {stored}"
        )
    return value if value >= 0 else stored + 1 + value


def read_activation(config: ConfigFields, name: str, default: str) -> str:
    """Return our name of the activation in field ``name``."""
    value = config.text(name, default)
    if value not in ACTIVATIONS:
        raise config.error(name, f"must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]
