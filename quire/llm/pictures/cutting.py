"""A picture cut into parts that an encoder takes; runs in the process that decodes.

The steps and roundings are those of transformers' image processors on Pillow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quire.core.model.vision_config import PictureShape

if TYPE_CHECKING:
    from PIL.Image import Image


def tiles(image: Image, shape: PictureShape) -> tuple[list[Image], int, int]:
    """Return a picture's tiles and itself, and how many rows and columns of tiles there are.

    Source: Idefics3's processor.
    """
    edge = shape.height
    width, height = image.size
    ratio = width / height
    if width >= height:
        width = _up(width, edge)
        height = _up(int(width / ratio), edge)
    else:
        height = _up(height, edge)
        width = _up(int(height * ratio), edge)
    image = image.resize((width, height), shape.resample)
    if (width, height) == (edge, edge):
        return [image], 0, 0
    whole = image.resize((edge, edge), shape.resample)
    return [*_cut(image, edge), whole], height // edge, width // edge


def grid(image: Image, shape: PictureShape) -> tuple[list[Image], int, int]:
    """Return a picture and its tiles, one above the other, and how many rows and columns there are.

    Source: LLaVA-NeXT's processor.
    """
    from PIL import Image as Images

    edge = shape.height
    width, height = image.size
    whole = image.resize((edge, edge), shape.resample)
    down, across = best_grid(height, width, shape.grids)
    if across / width < down / height:
        size = across, min(math.ceil(height * (across / width)), down)
    else:
        size = min(math.ceil(width * (down / height)), across), down
    laid = Images.new("RGB", (across, down))
    place = (across - size[0]) // 2, (down - size[1]) // 2
    laid.paste(image.resize(size, shape.resample), place)
    parts = [whole, *_cut(laid, edge)]
    stack = Images.new("RGB", (edge, edge * len(parts)))
    for number, part in enumerate(parts):
        stack.paste(part, (0, edge * number))
    return [stack], down // edge, across // edge


def best_grid(height: int, width: int, grids: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Return the height and width that show most of a picture and, of those, waste least."""

    def order(size: tuple[int, int]) -> tuple[int, int]:
        down, across = size
        scale = min(across / width, down / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - down * across

    return max(grids, key=order)


def square(image: Image, shape: PictureShape) -> Image:
    """Return a picture on the middle of a square of the mean colour.

    Source: LLaVA-OneVision's processor.
    """
    from PIL import Image as Images

    width, height = image.size
    edge = max(width, height)
    red, green, blue = (int(255 * mean) for mean in shape.mean)
    laid = Images.new("RGB", (edge, edge), (red, green, blue))
    laid.paste(image, ((edge - width) // 2, (edge - height) // 2))
    return laid.resize((shape.width, shape.height), shape.resample)


def crops(image: Image, shape: PictureShape) -> list[Image]:
    """Return the equal parts of a picture that is long; none of others.

    Source: Gemma 3's processor (pan and scan).
    """
    width, height = image.size
    longer, ratio = max(width, height), max(width, height) / min(width, height)
    if ratio < shape.least_crop_ratio:
        return []
    count = min(longer // shape.least_crop_edge, math.floor(ratio + 0.5))
    count = min(max(2, count), shape.most_crops)
    step = math.ceil(longer / count)
    if min(step, width, height) < shape.least_crop_edge:
        return []
    starts = range(0, longer, step)
    if width >= height:
        boxes = [(start, 0, min(start + step, width), height) for start in starts]
    else:
        boxes = [(0, start, width, min(start + step, height)) for start in starts]
    return [image.crop(box) for box in boxes]


def _cut(image: Image, edge: int) -> list[Image]:
    return [
        image.crop((left, top, left + edge, top + edge))
        for top in range(0, image.height, edge)
        for left in range(0, image.width, edge)
    ]


def _up(size: int, edge: int) -> int:
    return math.ceil(size / edge) * edge
