"""Outlines of shapes and digits as masks, and the colours that things have."""

from __future__ import annotations

import math
from random import Random

from PIL import Image, ImageDraw, ImageFont

#: Colours by name: what else is called so is near one of these.
COLOURS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((255, 0, 0), (220, 20, 40), (200, 30, 30), (230, 60, 50)),
    "orange": ((255, 165, 0), (255, 140, 0), (240, 130, 30)),
    "yellow": ((255, 255, 0), (250, 220, 40), (255, 235, 80)),
    "green": ((0, 128, 0), (0, 255, 0), (30, 170, 60), (60, 200, 80)),
    "cyan": ((0, 255, 255), (40, 210, 220), (64, 224, 208)),
    "blue": ((0, 0, 255), (30, 80, 220), (65, 105, 225), (0, 0, 160)),
    "purple": ((128, 0, 128), (110, 40, 170), (147, 50, 219)),
    "pink": ((255, 192, 203), (255, 105, 180), (250, 150, 190)),
    "brown": ((139, 69, 19), (165, 42, 42), (120, 72, 40)),
    "black": ((0, 0, 0), (18, 18, 22)),
    "grey": ((128, 128, 128), (150, 150, 152), (110, 112, 115)),
    "white": ((255, 255, 255), (244, 245, 246)),
}
SHAPES = ("circle", "square", "triangle", "diamond", "star", "heart", "cross", "ring")
DIGITS = tuple("0123456789")
#: Of an outline before it is made small.
FINE = 3


def polygon(shape: str, random: Random) -> list[tuple[float, float]]:
    """Return the corners of a shape around (0, 0), within 1 of it; y grows downwards."""
    if shape == "square":
        corners = _around(4, 45)
    elif shape == "diamond":
        width = random.uniform(0.65, 1.0)
        corners = [(0, -1), (width, 0), (0, 1), (-width, 0)]
    elif shape == "triangle":
        width, top = random.uniform(0.75, 1.0), random.uniform(-1.0, -0.75)
        lean = random.uniform(-0.3, 0.3) * random.randint(0, 1)
        corners = [(lean, top), (width, 0.75), (-width, 0.75)]
    elif shape == "star":
        inner = random.uniform(0.38, 0.5)
        outer, notches = _around(5, 0), _around(5, 36)
        corners = [
            point
            for tip, (x, y) in zip(outer, notches, strict=True)
            for point in (tip, (x * inner, y * inner))
        ]
    elif shape == "cross":
        arm = random.uniform(0.2, 0.36)
        corners = [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm)]
        corners += [(-x, -y) for x, y in corners]
    else:  # a heart
        turns = [math.tau * step / 40 for step in range(40)]
        corners = [
            (
                math.sin(turn) ** 3,
                -(13 * math.cos(turn) - 5 * math.cos(2 * turn) - 2 * math.cos(3 * turn)) / 15.5
                + math.cos(4 * turn) / 15.5,
            )
            for turn in turns
        ]
    return _turned(corners, _angle(shape, random))


def _around(number: int, first: float) -> list[tuple[float, float]]:
    """Return points of a circle, the first ``first`` degrees clockwise of the top."""
    angles = [math.radians(first + 360 * step / number) for step in range(number)]
    return [(math.sin(angle), -math.cos(angle)) for angle in angles]


def _angle(shape: str, random: Random) -> float:
    """Return by how many degrees a shape is turned; most stand upright."""
    kind = random.random()
    if kind < 0.5:
        return 0.0
    if kind > 0.75 and shape in ("star", "triangle"):
        return random.uniform(0, 360)
    return random.uniform(-12, 12)


def _turned(corners: list[tuple[float, float]], degrees: float) -> list[tuple[float, float]]:
    angle = math.radians(degrees)
    sine, cosine = math.sin(angle), math.cos(angle)
    return [(x * cosine - y * sine, x * sine + y * cosine) for x, y in corners]


def mask(shape: str, radius: float, random: Random) -> Image.Image:
    """Return a mask of a shape or digit, a square of at least twice ``radius`` pixels an edge.

    Most have smooth edges; of some each pixel is set or not, as programs without smoothing draw.
    """
    fine = 1 if random.random() < 0.25 else FINE
    if shape in DIGITS:
        return _digit(shape, radius, random)
    edge = max(3, round(2 * radius) + 1)
    large, middle = edge * fine, edge * fine / 2
    reach = radius * fine
    made = Image.new("L", (large, large), 0)
    draw = ImageDraw.Draw(made)
    if shape in ("circle", "ring"):
        draw.ellipse((middle - reach, middle - reach, middle + reach, middle + reach), fill=255)
        if shape == "ring":
            hole = reach * random.uniform(0.5, 0.72)
            draw.ellipse((middle - hole, middle - hole, middle + hole, middle + hole), fill=0)
    else:
        corners = polygon(shape, random)
        draw.polygon([(middle + x * reach, middle + y * reach) for x, y in corners], fill=255)
    return made.resize((edge, edge), Image.Resampling.BOX) if fine > 1 else made


def _digit(digit: str, radius: float, random: Random) -> Image.Image:
    """Return a digit in one of the two fonts that Pillow has in it."""
    edge = max(8, round(2 * radius))
    if random.random() < 0.2:
        glyph = _drawn(digit, ImageFont.load_default_imagefont(), 0)
    else:
        size = max(8, round(edge * 1.3))
        bold = round(size * random.uniform(0, 0.06)) if random.random() < 0.4 else 0
        glyph = _drawn(digit, ImageFont.load_default(size), bold)
    wide, high = glyph.size
    width = max(3, round(edge * min(1.0, wide / high * random.uniform(0.8, 1.25))))
    glyph = glyph.resize((width, edge), Image.Resampling.BICUBIC)
    made = Image.new("L", (edge, edge), 0)
    made.paste(glyph, ((edge - width) // 2, 0))
    if random.random() < 0.4:
        wider = Image.new("L", (round(edge * 1.2),) * 2, 0)
        wider.paste(made, (round(edge * 0.1),) * 2)
        made = wider.rotate(random.uniform(-15, 15), Image.Resampling.BICUBIC)
    return made


def _drawn(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, bold: int) -> Image.Image:
    """Return a mask as large as the text."""
    left, top, right, bottom = (int(edge) for edge in font.getbbox(text))
    made = Image.new("L", (right + 2 * bold + 2, bottom + 2 * bold + 2), 0)
    ImageDraw.Draw(made).text((bold, bold), text, 255, font, stroke_width=bold)
    found = made.getbbox()
    assert found is not None, (text, left, top)
    return made.crop(found)
