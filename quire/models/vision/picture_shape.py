"""Preparation of a checkpoint's pictures: its processor's file, read and checked."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from quire.checkpoints.config_fields import ConfigFields, read_json
from quire.core.errors import ModelLoadError
from quire.core.model.vision_config import PictureShape, VisionConfig
from quire.models.vision.encoder_config import MAX_EDGE, read_grids

FILE = "preprocessor_config.json"
NESTED_FILE = "processor_config.json"
#: Of a picture that the encoder is given.
MAX_PIXELS = 40_000_000


def read_picture_shape(folder: Path, vision: VisionConfig) -> PictureShape:
    """Read how pictures are prepared, from ``preprocessor_config.json``.

    Raises:
        ModelLoadError: The file is missing or asks for something that is not implemented.
    """
    path, values = folder / FILE, None
    if path.exists():
        values = read_json(path)
    elif (folder / NESTED_FILE).exists():
        path = folder / NESTED_FILE
        values = read_json(path).get("image_processor")
    if not isinstance(values, dict):
        raise ModelLoadError(
            f"[load] {folder}: pictures need {FILE}, or image_processor in {NESTED_FILE}; got "
            "neither. Copy the file, too."
        )
    fields = ConfigFields(values, str(path))
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        fields.require(name, True)
    return replace(
        _read_size(fields, vision),
        resample=_resample(fields, {"pooled": 2, "shuffled": 1}.get(vision.projector, 3)),
        rescale=fields.number("rescale_factor", 1 / 255),
        mean=_three(fields, "image_mean", least=-math.inf),
        std=_three(fields, "image_std", least=0.0),
    )


def _read_size(fields: ConfigFields, vision: VisionConfig) -> PictureShape:
    if vision.kind == "qwen":
        return _any_size(fields, vision)
    if vision.writing.names_tiles:
        return _tiles(fields, vision)
    if vision.joins_tiles:
        return _grid(fields, vision)
    fields.require("do_pad", False)
    if not vision.sees_ahead:
        fields.require("do_pan_and_scan", False)
    if fields.boolean("do_pan_and_scan", False):
        return _crops(fields, vision)
    return _fixed(fields, vision)


def _grid(fields: ConfigFields, vision: VisionConfig) -> PictureShape:
    """Check that tiles are those that the model joins."""
    fields.has("do_pad")  # of a batch, to as many tiles
    made = _fixed(fields, vision)
    if made.shortest_edge not in (None, made.height):
        raise fields.error("size", f"must have a shortest_edge of {made.height}")
    grids = read_grids(fields, vision.image_size)
    if grids and grids != vision.input.grids:
        raise fields.error("image_grid_pinpoints", "must be those of config.json")
    return vision.input


def _crops(fields: ConfigFields, vision: VisionConfig) -> PictureShape:
    """Read into how many parts long pictures are cut (pan and scan)."""
    return replace(
        _fixed(fields, vision),
        cut="crops",
        most_crops=fields.integer("pan_and_scan_max_num_crops", 4),
        least_crop_edge=fields.integer("pan_and_scan_min_crop_size", 256),
        least_crop_ratio=fields.number("pan_and_scan_min_ratio_to_activate", 1.2),
    )


def _tiles(fields: ConfigFields, vision: VisionConfig) -> PictureShape:
    """Read whether pictures are cut into tiles, and how long they are then."""
    fields.has("do_pad")  # all tiles are equally large
    edge = vision.image_size
    tile = fields.object("max_image_size") or ConfigFields({}, fields.where)
    if tile.integer("longest_edge", 364) != edge:
        raise fields.error("max_image_size", f"must have a longest_edge of {edge}, as the encoder")
    size = fields.object("size") or ConfigFields({}, fields.where)
    longest = size.integer("longest_edge", 4 * 364)
    if not edge <= longest <= MAX_EDGE:
        raise fields.error("size", f"must have a longest_edge of {edge} to {MAX_EDGE}")
    is_cut = fields.boolean("do_image_splitting", True)
    return PictureShape(edge, edge, longest_edge=longest, cut="tiles" if is_cut else "")


def _resample(fields: ConfigFields, default: int) -> int:
    resample = fields.integer("resample", default, minimum=0)
    if resample not in (0, 1, 2, 3, 4, 5):
        raise fields.error("resample", "must be one of Pillow's filters, 0 to 5")
    return resample


def _any_size(fields: ConfigFields, vision: VisionConfig) -> PictureShape:
    """Read between how many pixels pictures get; two older fields come before ``size``."""
    for name, value in (("patch_size", vision.patch_size), ("merge_size", vision.merge)):
        fields.require(name, value)
    fields.require("temporal_patch_size", 2)
    size = fields.object("size") or ConfigFields({}, fields.where)
    edge = vision.patch_size * vision.merge
    least, most = (
        (fields if fields.has(older) else size).integer(
            older if fields.has(older) else name, pixels
        )
        for older, name, pixels in (
            ("min_pixels", "shortest_edge", 56 * 56),
            ("max_pixels", "longest_edge", 28 * 28 * 1280),
        )
    )
    if not edge**2 <= most <= MAX_PIXELS or least > most:
        raise fields.error(
            "max_pixels" if fields.has("max_pixels") else "size",
            f"must allow a picture of {edge} x {edge} and at most {MAX_PIXELS} pixels",
        )
    return PictureShape(0, 0, multiple=edge, min_pixels=least, max_pixels=most)


def _fixed(fields: ConfigFields, vision: VisionConfig) -> PictureShape:
    edge = vision.image_size
    cropped = fields.boolean("do_center_crop", vision.kind == "clip")
    shortest, size = _edges(fields, "size")
    if shortest is None and size != (edge, edge):
        raise fields.error("size", f"must be {edge} x {edge}, as the encoder takes")
    if cropped and _edges(fields, "crop_size") not in ((None, (edge, edge)), (edge, None)):
        raise fields.error("crop_size", f"must be {edge} x {edge}, as the encoder takes")
    if shortest is not None and not cropped:
        raise fields.error("do_center_crop", "must be true where size has a shortest_edge")
    if shortest is not None and not edge <= shortest <= MAX_EDGE:
        raise fields.error("size", f"must have a shortest_edge of {edge} to {MAX_EDGE}")
    return PictureShape(edge, edge, shortest_edge=shortest)


def _edges(fields: ConfigFields, name: str) -> tuple[int | None, tuple[int, int] | None]:
    """Return the shortest edge, or height and width."""
    if type(fields.values.get(name)) is int:  # before transformers 4.26
        edge = fields.integer(name)
        return (edge, None) if name == "size" else (None, (edge, edge))
    size = fields.object(name)
    if size is None:
        raise fields.error(name, "must be given")
    if size.has("shortest_edge"):
        return size.integer("shortest_edge"), None
    return None, (size.integer("height"), size.integer("width"))


def _three(fields: ConfigFields, name: str, *, least: float) -> tuple[float, float, float]:
    value = fields.values.get(name)
    fields.has(name)
    numbers = value if isinstance(value, list) else []
    if len(numbers) != 3 or not all(
        type(n) in (int, float) and least < n < math.inf for n in numbers
    ):
        raise fields.error(name, "must be three numbers")
    red, green, blue = map(float, numbers)
    return red, green, blue
