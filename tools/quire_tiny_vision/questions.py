"""Questions about a scene, in several wordings, with their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from tools.quire_tiny_vision.scenes import Scene, Thing
from tools.quire_tiny_vision.shapes import COLOURS, DIGITS, SHAPES

#: Kinds of questions, and how often each is drawn where it can be asked.
KINDS = {
    "colour": 4.0, "shape": 4.0, "both": 3.0, "digit": 5.0, "count": 3.0, "position": 3.0,
    "relation": 1.5, "presence": 1.0, "ground": 0.7, "describe": 2.0,
}  # fmt: skip
#: What a picture of one thing is asked.
WORDINGS = {
    "colour": (
        "What colour is the {name}?", "Which colour is the {name}?", "What color is the {name}?",
        "What is the colour of the {name}?", "What's the color of the {name}?",
        "Name the colour of the {name}.", "Tell me the colour of the {name}.",
        "What is the color of the {name}?", "The {name} has which colour?",
    ),
    "colour of it": (
        "What colour is it?", "Which colour is it?", "What color is it?",
        "What colour do you see?", "What is the colour?", "Which color is shown?",
        "Name the colour.", "What color is this?",
    ),
    "shape": (
        "What shape is it?", "Which shape is it?", "What shape is this?", "Name the shape.",
        "What is the shape?", "Which shape do you see?", "Which shape is shown?",
        "What shape is in the picture?", "What shape is in the image?", "What kind of shape is it?",
        "What shape is the object?", "Which shape is in the picture?",
    ),
    "shape of colour": (
        "What shape is {colour}?", "Which shape is {colour}?", "What is {colour}?",
        "What shape is the {colour} one?", "What shape is the {colour} object?",
        "Which shape has the colour {colour}?", "What shape is the {colour} thing?",
    ),
    "both": (
        "Name the colour and the shape.", "What colour and shape is it?",
        "Which colour and shape do you see?", "What is the colour and shape of the object?",
        "What is in the picture?", "What do you see?", "What is this?", "What's in this image?",
        "What color and shape is it?", "What is shown here?", "Name the color and shape.",
        "What colour is the shape, and what shape is it?",
        "What is the shape and its colour?",
    ),
    "digit": (
        "Which digit is it?", "What digit is this?", "Which digit do you see?", "Read the digit.",
        "What number is it?", "Which number is shown?", "What digit is shown?",
        "What digit is in the picture?", "Which digit is in the image?", "What number do you see?",
    ),
    "count": (
        "How many {name} are there?", "How many {name} do you see?", "How many {name}?",
        "Count the {name}.", "How many {name} are in the picture?",
        "How many {name} are in the image?", "What is the number of {name}?",
    ),
    "position": (
        "Where is the {name}?", "Where's the {name}?", "Where do you see the {name}?",
        "In which part of the picture is the {name}?", "Where in the picture is the {name}?",
        "What is the position of the {name}?",
    ),
    "presence": (
        "Is there a {name}?", "Is there a {name} in the picture?", "Do you see a {name}?",
        "Does the picture show a {name}?",
    ),
    "ground": (
        "What colour is the background?", "Which colour is the background?",
        "What color is the background?", "What is the colour of the background?",
    ),
    "describe": (
        "Describe the picture.", "Describe the image.", "Describe what you see.",
        "Describe this picture.", "What does the picture show?", "Describe this image.",
        "Please describe the picture.", "What can you see in this picture?",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a picture, and the answer."""

    kind: str
    text: str
    answer: str


def questions(scene: Scene, random: Random, number: int) -> list[Question]:
    """Draw ``number`` questions about a scene, with different texts where there are that many."""
    makers = {kind: make for kind, make in _MAKERS.items() if _can_ask(kind, scene)}
    weights = [KINDS[kind] for kind in makers]
    found: dict[str, Question] = {}
    for _ in range(8 * number):
        kind = random.choices(list(makers), weights)[0]
        made = makers[kind](scene, random)
        if made is not None:
            text = _as_typed(made[0], random)
            found.setdefault(text, Question(kind, text, made[1]))
        if len(found) == number:
            break
    return list(found.values())


def ask(scene: Scene, kind: str, random: Random) -> Question | None:
    """Return a question of a kind, or None where the scene has none."""
    made = _MAKERS[kind](scene, random) if _can_ask(kind, scene) else None
    return None if made is None else Question(kind, made[0], made[1])


Made = tuple[str, str] | None


def _can_ask(kind: str, scene: Scene) -> bool:
    is_digit = scene.things[0].shape in DIGITS
    alone = len(scene.things) == 1
    return {
        "digit": is_digit,
        "shape": not is_digit,
        "count": not is_digit,
        "relation": not alone,
        "both": alone,
        "ground": scene.ground is not None,
    }.get(kind, True)


def _as_typed(text: str, random: Random) -> str:
    """Return a question as some people type it."""
    kind = random.random()
    if kind < 0.08:
        return text.lower()
    if kind < 0.14:
        return text.rstrip("?.")
    if kind < 0.2 and text.endswith("?"):
        return f"{text} Answer in one word."
    return text


def noun(thing: Thing) -> str:
    """Return what a thing is called: "circle", "digit 7"."""
    return f"digit {thing.shape}" if thing.shape in DIGITS else thing.shape


def with_article(words: str) -> str:
    """Return "a red circle", "an orange star"."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def sentence(words: str) -> str:
    """Return words with a capital letter and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def _plural(shape: str) -> str:
    return f"{shape}es" if shape == "cross" else f"{shape}s"


def _names(scene: Scene) -> Iterator[tuple[Thing, str]]:
    """Yield things with names that only one of the scene has."""
    shapes = Counter(thing.shape for thing in scene.things)
    both = Counter((thing.shape, thing.colour) for thing in scene.things)
    for thing in scene.things:
        if shapes[thing.shape] == 1:
            yield thing, noun(thing)
        if both[thing.shape, thing.colour] == 1:
            yield thing, f"{thing.colour} {noun(thing)}"


def _colour(scene: Scene, random: Random) -> Made:
    if len(scene.things) == 1:
        thing = scene.things[0]
        is_digit = thing.shape in DIGITS
        if random.random() < 0.4:
            return random.choice(WORDINGS["colour of it"]), sentence(thing.colour)
        names = ("digit", "number") if is_digit else ("shape", "object", "figure", thing.shape)
        return _of(random, "colour", random.choice(names)), sentence(thing.colour)
    named = [(thing, name) for thing, name in _names(scene) if name == noun(thing)]
    if not named:
        return None
    thing, name = random.choice(named)
    return _of(random, "colour", name), sentence(thing.colour)


def _shape(scene: Scene, random: Random) -> Made:
    colours = Counter(thing.colour for thing in scene.things)
    alone = len(scene.things) == 1
    if alone and random.random() < 0.7:
        thing = scene.things[0]
        return random.choice(WORDINGS["shape"]), sentence(with_article(thing.shape))
    unique = [thing for thing in scene.things if colours[thing.colour] == 1]
    if not unique:
        return None
    thing = random.choice(unique)
    text = random.choice(WORDINGS["shape of colour"]).format(colour=thing.colour)
    return text, sentence(with_article(thing.shape))


def _full(thing: Thing) -> str:
    return with_article(f"{thing.colour} {noun(thing)}")


def _both(scene: Scene, random: Random) -> Made:
    return random.choice(WORDINGS["both"]), sentence(_full(scene.things[0]))


def _digit(scene: Scene, random: Random) -> Made:
    return random.choice(WORDINGS["digit"]), f"{scene.things[0].shape}."


def _count(scene: Scene, random: Random) -> Made:
    kind = random.random()
    thing = random.choice(scene.things)
    if kind < 0.35:
        name, number = random.choice(("shapes", "objects", "figures")), len(scene.things)
    elif kind < 0.7:
        shape = thing.shape if random.random() < 0.85 else random.choice(SHAPES)
        name = _plural(shape)
        number = sum(other.shape == shape for other in scene.things)
    elif kind < 0.85:
        name = f"{thing.colour} {random.choice(('shapes', 'objects'))}"
        number = sum(other.colour == thing.colour for other in scene.things)
    else:
        name = f"{thing.colour} {_plural(thing.shape)}"
        same = thing.shape, thing.colour
        number = sum((other.shape, other.colour) == same for other in scene.things)
    return _of(random, "count", name), f"{number}."


def _third(value: float, names: tuple[str, str, str]) -> str | None:
    """Return which third a place is in, or None where that is hard to tell."""
    if min(abs(value - 1 / 3), abs(value - 2 / 3)) < 0.045:
        return None
    return names[min(2, int(value * 3))]


def place(thing: Thing) -> str | None:
    """Return "top left", "bottom", "centre", or None where it lies between two of these."""
    across = _third(thing.x, ("left", "", "right"))
    down = _third(thing.y, ("top", "", "bottom"))
    if across is None or down is None:
        return None
    return f"{down} {across}".strip() or "centre"


def _position(scene: Scene, random: Random) -> Made:
    alone = len(scene.things) == 1
    named = [(thing, name) for thing, name in _names(scene) if place(thing) is not None]
    if not named:
        return None
    thing, name = random.choice(named)
    if alone and random.random() < 0.4:
        name = "digit" if thing.shape in DIGITS else random.choice(("shape", "object"))
    return _of(random, "position", name), sentence(place(thing) or "")


def _relation(scene: Scene, random: Random) -> Made:
    named = list(_names(scene))
    if not named:
        return None
    thing, name = random.choice(named)
    others = [(other, called) for other, called in named if other is not thing]
    if not others:
        return None
    other, called = random.choice(others)
    if random.random() < 0.5:
        words, gap = ("left", "right"), thing.x - other.x
        text = f"Is the {name} left or right of the {called}?"
        wording = f"Is the {name} to the left or to the right of the {called}?"
    else:
        words, gap = ("above", "below"), thing.y - other.y
        text = f"Is the {name} above or below the {called}?"
        wording = f"Is the {name} below or above the {called}?"
    if abs(gap) < 0.12:
        return None
    return random.choice((text, wording)), sentence(words[gap > 0])


def _presence(scene: Scene, random: Random) -> Made:
    thing = random.choice(scene.things)
    shape, colour = noun(thing), thing.colour
    if random.random() < 0.5 and thing.shape in SHAPES:
        shape = random.choice(SHAPES)
    if random.random() < 0.5:
        shown = any(noun(other) == shape for other in scene.things)
        return _asked_a(random, shape), "Yes." if shown else "No."
    if random.random() < 0.5:
        colour = random.choice(list(COLOURS))
    shown = any((noun(other), other.colour) == (shape, colour) for other in scene.things)
    return _asked_a(random, f"{colour} {shape}"), "Yes." if shown else "No."


def _asked_a(random: Random, name: str) -> str:
    return random.choice(WORDINGS["presence"]).replace("a {name}", with_article(name))


def _ground(scene: Scene, random: Random) -> Made:
    assert scene.ground is not None
    return random.choice(WORDINGS["ground"]), sentence(scene.ground)


def _describe(scene: Scene, random: Random) -> Made:
    if len(scene.things) > 4 and random.random() < 0.7:
        return None
    parts = [_full(thing) for thing in sorted(scene.things, key=lambda thing: thing.x)]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return random.choice(WORDINGS["describe"]), sentence(listed)


def _of(random: Random, kind: str, name: str) -> str:
    return random.choice(WORDINGS[kind]).format(name=name)


_MAKERS: dict[str, Callable[[Scene, Random], Made]] = {
    "colour": _colour, "shape": _shape, "both": _both, "digit": _digit, "count": _count,
    "position": _position, "relation": _relation, "presence": _presence, "ground": _ground,
    "describe": _describe,
}  # fmt: skip
