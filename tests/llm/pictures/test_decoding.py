"""Decoding and resizing against transformers' processors on Pillow, and hostile files."""

import io
from contextlib import suppress

import numpy as np
import pytest

from quire.core.model.vision_config import PictureShape

pytest.importorskip("PIL")

from PIL import Image, ImageOps

from quire.llm.pictures.decoding import PictureError, decode
from tools.hostile_pictures import HOSTILE, picture, plain

EDGE = 28
SHORTEST = PictureShape(EDGE, EDGE, shortest_edge=EDGE)
LARGER = PictureShape(EDGE, EDGE, shortest_edge=EDGE + 7)
EXACT = PictureShape(EDGE, EDGE)
LINEAR = PictureShape(EDGE, EDGE, resample=2)
FILES = {
    "rgb": picture(),
    "high": picture(size=(17, 90)),
    "wide": picture(size=(200, 31)),
    "square": picture(size=(28, 28)),
    "smaller": picture(size=(5, 3)),
    "transparent": picture("RGBA"),
    "grey": picture("L"),
    "grey, transparent": picture("LA"),
    "palette": picture("P"),
    "palette, transparent": picture("P", transparency=3),
    "one bit": picture("1"),
    "16 bits": picture("I;16"),
    "jpeg": picture(format="JPEG"),
    "progressive": picture(format="JPEG", progressive=True),
    "cmyk": picture("CMYK", format="JPEG"),
    "gif": picture("P", format="GIF"),
    "webp": picture(format="WEBP", lossless=True),
    "one pixel": plain((1, 1), "red"),
}


def pixels(data, shape):
    (found,) = decode(data, shape).parts
    return np.frombuffer(found.data, np.uint8).reshape(found.height, found.width, 3)


def processed(data, shape):
    """Return what transformers' processor makes of a file before it rescales the values."""
    module = pytest.importorskip("transformers.models.clip.image_processing_pil_clip")
    edges = {"height": shape.height, "width": shape.width}
    edge = shape.shortest_edge
    processor = module.CLIPImageProcessorPil(
        size=edges if edge is None else {"shortest_edge": edge},
        do_center_crop=edge is not None,
        crop_size=edges,
        resample=shape.resample,
        do_rescale=False,
        do_normalize=False,
    )
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    (found,) = processor(image, return_tensors="np")["pixel_values"]
    return found.transpose(1, 2, 0)


@pytest.mark.parametrize("shape", [SHORTEST, LARGER, EXACT, LINEAR])
@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_transformers(name, shape):
    want = processed(FILES[name], shape)
    np.testing.assert_array_equal(pixels(FILES[name], shape), want)


SIZES = {
    "any": PictureShape(0, 0, multiple=14, min_pixels=28 * 28, max_pixels=56 * 56),
    "small": PictureShape(0, 0, multiple=28, min_pixels=200 * 200, max_pixels=10**6),
}


@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", FILES)
def test_pictures_of_any_size_are_those_of_transformers(name, shape):
    path = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    module = pytest.importorskip(path)
    processor = module.Qwen2VLImageProcessorPil()
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(FILES[name])))
    (image,) = processor._prepare_image_like_inputs([image], do_convert_rgb=True)
    edges = {"shortest_edge": shape.min_pixels, "longest_edge": shape.max_pixels}
    size = processor._standardize_kwargs(size=edges)["size"]
    want = processor.resize(image, size, shape.resample, shape.multiple).transpose(1, 2, 0)
    np.testing.assert_array_equal(pixels(FILES[name], shape), want)


@pytest.mark.parametrize("longest", [EDGE, 3 * EDGE, 5 * EDGE + 3])
@pytest.mark.parametrize("name", FILES)
def test_tiles_are_those_of_transformers(name, longest):
    module = pytest.importorskip("transformers.models.idefics3.image_processing_pil_idefics3")
    processor = module.Idefics3ImageProcessorPil(
        size={"longest_edge": longest},
        max_image_size={"longest_edge": EDGE},
        do_rescale=False,
        do_normalize=False,
        return_row_col_info=True,
    )
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(FILES[name])))
    want = processor([[image]], return_tensors="np")
    shape = PictureShape(EDGE, EDGE, longest_edge=longest, cut="tiles", resample=1)
    got = decode(FILES[name], shape)
    assert (got.rows, got.columns) == (want["rows"][0][0], want["cols"][0][0])
    parts = [np.frombuffer(one.data, np.uint8).reshape(EDGE, EDGE, 3) for one in got.parts]
    np.testing.assert_array_equal(parts, want["pixel_values"][0].transpose(0, 2, 3, 1))
    assert 3 * EDGE**2 * len(parts) <= shape.most_bytes


def test_a_picture_is_turned_upright():
    exif = Image.Exif()
    exif[274] = 6  # to be turned by a quarter
    turned = picture(size=(60, 30), format="JPEG", exif=exif)
    upright = picture(size=(60, 30), format="JPEG")
    got, flat = pixels(turned, EXACT), pixels(upright, EXACT)
    np.testing.assert_array_equal(got, processed(turned, EXACT))
    assert not np.array_equal(got, flat)


def test_the_largest_pictures_are_taken():
    got = pixels(plain((8000, 5000), (255, 0, 0), format="JPEG", quality=10), SHORTEST)
    assert (np.abs(got.astype(int) - [254, 0, 0]) < 8).all()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_their_reason(name):
    data, reason = HOSTILE[name]
    if reason is None:
        assert len(decode(data, SHORTEST).parts[0].data) == 3 * EDGE * EDGE
        return
    with pytest.raises(PictureError, match=reason) as caught:
        decode(data, SHORTEST)
    assert len(str(caught.value)) < 200
    assert "0x" not in str(caught.value), "an address of memory"


def test_any_beginning_of_a_file_is_a_picture_or_refused():
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        data = picture("P" if kind == "GIF" else "RGB", size=(9, 9), format=kind)
        for end in range(0, len(data), 7):
            with suppress(PictureError):
                decode(data[:end], EXACT)
