"""Scenes: what stands where, drawn as a picture of any size with a ground and what cameras add."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageFilter

from tools.quire_tiny_vision.shapes import COLOURS, DIGITS, SHAPES, mask

Colour = tuple[int, int, int]
#: Distance in RGB of a thing from its ground, at least.
CONTRAST = 110.0
#: Share of a cell that a thing must cover to be what the cell shows, and of one that shows nothing.
COVERED, BARE = 0.25, 0.02


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape or digit; centre in shares of width and height, radius of the shorter edge."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture and what it shows.

    Attributes:
        picture: RGB.
        things: In no order.
        ground: The colour's name, or None where it has none.
        masks: What each thing covers, in the picture's size.
    """

    picture: Image.Image
    things: tuple[Thing, ...]
    ground: str | None
    masks: tuple[Image.Image, ...]


def draw_scene(random: Random, *, edges: tuple[int, int] = (48, 170), alone: bool = False) -> Scene:
    """Return a scene that follows from ``random``.

    Args:
        random: Draws all of it.
        edges: Bounds of the longer edge, in pixels.
        alone: Show one thing.
    """
    width, height = _size(random, edges)
    ground = random.choice(list(COLOURS)) if random.random() < 0.6 else "white"
    things = _things(random, ground, width / height, alone)
    picture, shade, named = _ground(random, ground, width, height)
    masks = []
    for thing in things:
        colour = _shade(random, thing.colour, shade)
        masks.append(_put(picture, thing, colour, random))
    picture = _camera(picture, random)
    return Scene(picture, things, ground if named else None, tuple(masks))


def _size(random: Random, edges: tuple[int, int]) -> tuple[int, int]:
    longer = math.exp(random.uniform(math.log(edges[0]), math.log(edges[1])))
    aspect = 1.0 if random.random() < 0.5 else random.uniform(0.7, 1.0)
    sizes = [round(longer), round(longer * aspect)]
    random.shuffle(sizes)
    return sizes[0], sizes[1]


def _things(random: Random, ground: str, aspect: float, alone: bool) -> tuple[Thing, ...]:
    """Return one or several that do not touch each other."""
    kind = random.random() * (0.54 if alone else 1.0)
    colours = [name for name in COLOURS if name != ground]
    if kind < 0.16:
        wanted = [(random.choice(DIGITS), random.choice(colours))]
        radii = (0.2, 0.46)
    elif kind < 0.54:
        wanted = [(random.choice(SHAPES), random.choice(colours))]
        radii = (0.15, 0.48)
    elif kind < 0.75:
        number = random.randint(2, 3)
        wanted = [(random.choice(SHAPES), random.choice(colours)) for _ in range(number)]
        radii = (0.13, 0.24)
    else:  # to be counted: few shapes and colours, in many pictures only one
        shapes = random.sample(SHAPES, random.randint(1, 2))
        some = random.sample(colours, random.randint(1, 2))
        number = random.randint(1, 6)
        wanted = [(random.choice(shapes), random.choice(some)) for _ in range(number)]
        radii = (0.1, 0.16)
    return _placed(random, wanted, radii, aspect)


def _placed(
    random: Random, wanted: list[tuple[str, str]], radii: tuple[float, float], aspect: float
) -> tuple[Thing, ...]:
    """Give each a place; what finds none is left out."""
    across, down = max(1.0, aspect), max(1.0, 1 / aspect)
    alike = random.uniform(*radii) if random.random() < 0.4 else None
    things: list[Thing] = []
    for shape, colour in wanted:
        for _ in range(20):
            radius = random.uniform(*radii) if alike is None else alike
            reach = radius + 0.01
            x, y = random.uniform(reach, across - reach), random.uniform(reach, down - reach)
            if all(
                math.hypot(x - other.x * across, y - other.y * down)
                > (radius + other.radius) * 1.15
                for other in things
            ):
                things.append(Thing(shape, colour, x / across, y / down, radius))
                break
    return tuple(things)


def _near(random: Random, colour: Colour, by: int) -> Colour:
    red, green, blue = (min(255, max(0, value + random.randint(-by, by))) for value in colour)
    return red, green, blue


def _shade(random: Random, name: str, ground: Colour) -> Colour:
    """Return a shade of a colour that can be told from its ground."""
    best, most = (0, 0, 0), -1.0
    for _ in range(6):
        exact = random.random() < 0.3
        shade = _near(random, random.choice(COLOURS[name]), 0 if exact else 10)
        far = math.dist(shade, ground)
        if far > CONTRAST:
            return shade
        if far > most:
            best, most = shade, far
    return best


def _ground(random: Random, name: str, width: int, height: int) -> tuple[Image.Image, Colour, bool]:
    """Return a ground, its middle shade, and whether it is all of the named colour."""
    shade = random.choice(COLOURS[name])
    kind = random.random()
    if kind < 0.6:
        plain = _near(random, shade, 4) if random.random() < 0.5 else shade
        return Image.new("RGB", (width, height), plain), plain, True
    other = _near(random, shade, 40)
    if kind < 0.8:
        slope = Image.linear_gradient("L").rotate(random.choice((0, 90, 180, 270)))
        slope = slope.resize((width, height))
        first, second = (Image.new("RGB", (width, height), c) for c in (shade, other))
        return Image.composite(first, second, slope), shade, False
    cells = random.randint(3, 12)
    patches = _noise(random, (cells, cells, 3), 1.0) * 9 + np.array(shade)
    small = Image.fromarray(np.clip(patches, 0, 255).astype(np.uint8))
    filters = (Image.Resampling.NEAREST, Image.Resampling.BICUBIC)
    return small.resize((width, height), random.choice(filters)), shade, False


def _noise(random: Random, shape: tuple[int, ...], scale: float) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(random.getrandbits(64))
    return generator.standard_normal(shape, np.float32) * np.float32(scale)


def _put(picture: Image.Image, thing: Thing, colour: Colour, random: Random) -> Image.Image:
    """Draw a thing and return what it covers."""
    width, height = picture.size
    outline = mask(thing.shape, thing.radius * min(width, height), random)
    left = round(thing.x * width - outline.width / 2)
    top = round(thing.y * height - outline.height / 2)
    covered = Image.new("L", picture.size, 0)
    covered.paste(outline, (left, top))
    picture.paste(colour, (0, 0), covered)
    if thing.shape in SHAPES and outline.width > 20 and random.random() < 0.12:
        inner = covered.filter(ImageFilter.MinFilter(3))
        edge = ImageChops.subtract(covered, inner)
        picture.paste((0, 0, 0) if sum(colour) > 200 else (255, 255, 255), (0, 0), edge)
    return covered


def _camera(picture: Image.Image, random: Random) -> Image.Image:
    """Add blur, noise and what JPEG leaves, to some pictures."""
    if random.random() < 0.1:
        picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 1.0)))
    if random.random() < 0.3:
        values = np.asarray(picture, np.float32)
        noisy = values + _noise(random, values.shape, random.uniform(1, 12))
        picture = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    if random.random() < 0.3:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=random.randint(35, 95))
        picture = Image.open(file).convert("RGB")
    return picture


#: What cells of a picture can show: nothing, a shape, a digit.
KINDS = ("", *SHAPES, *DIGITS)
CELL_COLOURS = ("", *COLOURS)


def cell_labels(scene: Scene, cells: int) -> npt.NDArray[np.int64]:
    """Return what each cell of a ``cells`` x ``cells`` grid shows.

    Returns:
        (2, cells * cells), row by row: indices of KINDS and of CELL_COLOURS; -100 for one that
        shows too little of a thing to tell.
    """
    kinds, colours = np.zeros(cells * cells, np.int64), np.zeros(cells * cells, np.int64)
    for thing, covered in zip(scene.things, scene.masks, strict=True):
        small = covered.resize((cells, cells), Image.Resampling.BOX)
        share = np.asarray(small, np.float32).reshape(-1) / 255
        shown = share > COVERED
        kinds[shown] = KINDS.index(thing.shape)
        colours[shown] = CELL_COLOURS.index(thing.colour)
        unclear = (share > BARE) & ~shown & (kinds == 0)
        kinds[unclear] = colours[unclear] = -100
    return np.stack([kinds, colours])
