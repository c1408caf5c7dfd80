"""Bytes of a picture to pixels of the size that an encoder takes; runs in a process of its own.

The steps are those of transformers' image processors on Pillow, value for value: turned upright as
its EXIF data says, laid on white where it is transparent, resized, its middle cut out.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import msgspec

from quire.core.model.vision_config import PictureShape
from quire.llm.pictures.cutting import crops, grid, square, tiles

if TYPE_CHECKING:
    from PIL.Image import Image

#: Formats that are decoded; the decoders of others are not loaded at all.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
#: Of a picture as it is sent: three bytes each while it is resized.
MAX_PIXELS = 40_000_000
#: Of its longer edge to its shorter one: the shorter one is made as long as the encoder's.
MAX_RATIO = 64


class PictureError(ValueError):
    """The bytes are no picture that is taken; the message ends "a picture must"."""


class Pixels(msgspec.Struct):
    """A picture as an encoder takes it: (height, width, 3) uint8."""

    height: int
    width: int
    data: bytes


class Prepared(msgspec.Struct):
    """The encoder's input for one picture.

    ``parts`` are tiles row by row, then the whole picture; or the whole alone; or the whole and
    crops; or one image with the whole and ``rows`` x ``columns`` tiles, one above the other.
    ``height`` and ``width`` are those of the picture as it was sent, upright.
    """

    parts: list[Pixels]
    height: int
    width: int
    rows: int = 0
    columns: int = 0


def decode(data: bytes, shape: PictureShape) -> Prepared:
    """Return a picture's pixels.

    Args:
        data: A file of one of :data:`FORMATS`.
        shape: The shape that the encoder takes.

    Raises:
        PictureError: The data is not a picture, or is damaged or too large.
        MemoryError: The picture needs more memory than there is.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise PictureError(f"be one of {', '.join(FORMATS)}") from None
    except (
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ):  # above a limit of its own
        raise PictureError(f"have at most {MAX_PIXELS} pixels") from None
    except MemoryError:
        raise
    except Exception as error:  # the formats' readers raise all kinds of errors
        raise PictureError(_damaged(error)) from error
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise PictureError(f"have at most {MAX_PIXELS} pixels; got {width} x {height}")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise PictureError(
            f"be at most {MAX_RATIO} times as long as it is wide; got {width} x {height}"
        )
    try:
        if getattr(image, "is_animated", False):
            raise PictureError("have one frame; got several")
        image.load()
        upright = ImageOps.exif_transpose(image)
        return _prepare(_on_white(upright), shape)
    except (MemoryError, PictureError):
        raise
    except Exception as error:
        raise PictureError(_damaged(error)) from error


def _damaged(error: Exception) -> str:
    return f"be a whole file; {str(error) or type(error).__name__:.80}"


def _on_white(image: Image) -> Image:
    """Return the picture as red, green and blue."""
    from PIL import Image as Images

    has_alpha = "A" in image.getbands() or image.info.get("transparency") is not None
    if not has_alpha:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Images.new("RGBA", image.size, (255, 255, 255, 255))
    return Images.alpha_composite(white, image).convert("RGB")


def _pixels(image: Image) -> Pixels:
    return Pixels(image.height, image.width, image.tobytes())


def _prepare(image: Image, shape: PictureShape) -> Prepared:
    height, width = image.height, image.width
    if shape.longest_edge is not None:
        image = image.resize(_longest_size(width, height, shape.longest_edge), shape.resample)
    rows = columns = 0
    if shape.cut == "tiles":
        parts, rows, columns = tiles(image, shape)
    elif shape.cut == "grid":
        parts, rows, columns = grid(image, shape)
    elif shape.cut == "square":
        parts = [square(image, shape)]
    elif shape.cut == "crops":
        parts = [_fit(part, shape) for part in (image, *crops(image, shape))]
    else:
        parts = [_fit(image, shape)]
    return Prepared(list(map(_pixels, parts)), height, width, rows, columns)


def _longest_size(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return a size whose longer edge is ``longest``, and whose shorter one is even."""
    ratio = width / height
    if width >= height:
        shorter = int(longest / ratio)
        return longest, max(shorter + shorter % 2, 1)
    shorter = int(longest * ratio)
    return max(shorter + shorter % 2, 1), longest


def _fit(image: Image, shape: PictureShape) -> Image:
    if shape.multiple:
        return image.resize(fitting_size(*image.size, shape), shape.resample)
    edge = shape.shortest_edge
    if edge is None:
        return image.resize((shape.width, shape.height), shape.resample)
    width, height = image.size
    longer = edge * max(width, height) // min(width, height)
    size = (edge, longer) if width <= height else (longer, edge)
    image = image.resize(size, shape.resample)
    left, top = (size[0] - shape.width) // 2, (size[1] - shape.height) // 2
    return image.crop((left, top, left + shape.width, top + shape.height))


def fitting_size(width: int, height: int, shape: PictureShape) -> tuple[int, int]:
    """Return the width and height that a picture gets where edges are multiples.

    Source: Qwen2-VL's ``smart_resize``, whose roundings these are.
    """
    edge = shape.multiple
    sizes = [round(size / edge) * edge for size in (width, height)]
    if math.prod(sizes) > shape.max_pixels:
        shrink = math.sqrt(width * height / shape.max_pixels)
        sizes = [max(edge, math.floor(size / shrink / edge) * edge) for size in (width, height)]
    elif math.prod(sizes) < shape.min_pixels:
        stretch = math.sqrt(shape.min_pixels / (width * height))
        sizes = [math.ceil(size * stretch / edge) * edge for size in (width, height)]
    return sizes[0], sizes[1]
