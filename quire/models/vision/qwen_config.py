"""The configuration of the picture encoder of Qwen2-VL and Qwen2.5-VL, read and checked."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.vision_config import PictureShape, VisionConfig, Writing
from quire.models.vision.encoder_config import MAX_EDGE, read_activation, vision_fields


def read_qwen2_vision(config: ConfigFields) -> VisionConfig:
    """Read the encoder of a Qwen2VLForConditionalGeneration; ``input`` is that of no file yet.

    Raises:
        ModelLoadError: A field is missing or out of range.
    """
    vision = vision_fields(config)
    width = vision.integer("embed_dim", 1280)
    ratio = vision.number("mlp_ratio", 4)
    vision.has("hidden_size")  # the decoder's
    made = _read(config, vision, width, int(width * ratio), "quick_gelu")
    vision.refuse_unread()
    return made


def read_qwen2_5_vision(config: ConfigFields) -> VisionConfig:
    """Read the encoder of a Qwen2_5_VLForConditionalGeneration: RMSNorm, a gated MLP, windows."""
    vision = vision_fields(config)
    inner = vision.integer("intermediate_size", 3420)
    vision.has("out_hidden_size")
    made = _read(config, vision, vision.integer("hidden_size", 3584), inner, "silu", gated=True)
    edge = made.patch_size * made.merge
    window = vision.integer("window_size", 112)
    if window < edge or window > MAX_EDGE:
        raise vision.error("window_size", f"must be {edge} to {MAX_EDGE}")
    layers = vision.values.get("fullatt_block_indexes", [7, 15, 23, 31])
    vision.has("fullatt_block_indexes")
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise vision.error("fullatt_block_indexes", "must be a list of numbers of layers")
    vision.has("tokens_per_second")
    vision.refuse_unread()
    return replace(made, window_size=window, full_layers=tuple(layers))


def _read(
    config: ConfigFields,
    vision: ConfigFields,
    width: int,
    inner: int,
    activation: str,
    gated: bool = False,
) -> VisionConfig:
    for name, value in (("in_channels", 3), ("in_chans", 3), ("temporal_patch_size", 2)):
        vision.require(name, value)
    heads = vision.integer("num_heads", 16)
    if width % (4 * heads):
        raise vision.error("num_heads", f"must divide a fourth of the width, {width}")
    rope = vision.object("rope_parameters")
    if rope is not None:
        rope.require("rope_theta", 10_000, 10_000.0)
    depth, patch = vision.integer("depth", 32), vision.integer("patch_size", 14)
    merge = vision.integer("spatial_merge_size", 2)
    if patch * merge > MAX_EDGE:
        raise vision.error("patch_size", f"must be at most {MAX_EDGE // merge}")
    for name in ("spatial_patch_size", "model_type"):
        vision.has(name)
    token = config.integer("image_token_id", 151655, minimum=0)
    return VisionConfig(
        kind="qwen",
        hidden_size=width,
        num_layers=depth,
        num_heads=heads,
        intermediate_size=inner,
        image_size=0,
        patch_size=patch,
        activation=read_activation(vision, "hidden_act", activation),
        norm_eps=1e-6,
        num_stored_layers=depth,
        writing=Writing(token, token),
        input=PictureShape(0, 0, multiple=patch * merge),
        projector="merged",
        merge=merge,
        gated_mlp=gated,
        rms_norm=gated,
        has_grid=True,
    )
