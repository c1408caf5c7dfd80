"""Short stories from a small grammar: hero, place, wish, trouble, friend and ending."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.quire_tiny.question import Question

ANIMALS = (
    *("fox", "rabbit", "bear", "mouse", "owl", "cat", "dog", "frog", "wolf", "duck", "turtle"),
    *("horse", "hedgehog", "squirrel", "bird", "sheep", "goat", "lion", "elephant", "dragon"),
    *("penguin", "whale", "bee", "crow", "robot", "princess", "wizard", "pirate", "farmer"),
)
NAMES = (
    *("Finn", "Lily", "Oscar", "Mia", "Rufus", "Bella", "Otto", "Ruby", "Hugo", "Nora", "Felix"),
    *("Ella", "Milo", "Ivy", "Toby", "Luna", "Sam", "Poppy", "Jack", "Rosa", "Theo", "Daisy"),
)
TRAITS = ("little", "brave", "curious", "shy", "clever", "lonely", "kind", "old", "young", "hungry")
PLACES = {
    "forest": ("in a deep green forest", "between the tall trees"),
    "sea": ("by the wide blue sea", "along the sandy beach"),
    "mountain": ("high on a snowy mountain", "over the cold rocks"),
    "village": ("in a small quiet village", "down the narrow street"),
    "river": ("beside a slow river", "across the old bridge"),
    "castle": ("in an old stone castle", "up the dark stairs"),
    "farm": ("on a sunny farm", "through the yellow field"),
    "garden": ("in a garden full of flowers", "under the apple trees"),
    "desert": ("in a hot and empty desert", "over the golden dunes"),
    "island": ("on a lonely island", "around the green bay"),
}
WISHES = (
    ("a golden key", "opened a box full of music"),
    ("a red balloon", "lifted gently into the sky"),
    ("a warm blanket", "kept out the cold of the night"),
    ("the biggest apple", "tasted as sweet as honey"),
    ("a silver bell", "rang clear as water"),
    ("a lost star", "shone brighter than a lamp"),
    ("an old map", "showed the way to a secret lake"),
    ("a magic seed", "grew into a tree in one night"),
    ("a small lantern", "made the darkness friendly"),
    ("a blue stone", "glowed when it was touched"),
    ("a paper boat", "sailed all the way to the sea"),
    ("a wooden flute", "made everyone want to dance"),
)
TROUBLES = (
    ("a storm came, and the rain fell hard", "the rain"),
    ("the path was blocked by a fallen tree", "the fallen tree"),
    ("night fell, and it was too dark to see", "the dark"),
    ("a thick fog hid everything", "the fog"),
    ("a deep hole lay in the way", "the hole"),
    ("a cold wind began to blow", "the wind"),
    ("a grumpy troll wanted a riddle solved", "the troll"),
    ("the snow was too deep to walk in", "the snow"),
)
HELPS = (
    "Do not be afraid",
    "Two can do more than one",
    "Follow me",
    "I know another way",
    "Let us try it together",
    "Rest a little, then try again",
)
FEELINGS = ("happy", "proud", "glad", "thankful", "full of joy")
ENDINGS = (
    "From that day on they were best friends.",
    "And they lived happily ever after.",
    "That night they slept well and dreamed of new adventures.",
    "They shared it with everyone, and nobody was sad any more.",
    "And whenever it rained, they told each other this story again.",
    "Since then the two have never been apart.",
)
ASK = (
    "Tell me a short story about {a}.",
    "Tell me a story about {a}.",
    "Write a short story about {a}.",
    "I would like to hear a story about {a}.",
    "Can you tell me a story about {a}?",
    "Please write a story about {a}.",
)


@dataclass(frozen=True)
class Cast:
    """The choices that make one story."""

    hero: str
    name: str
    trait: str
    place: str
    wish: tuple[str, str]
    trouble: tuple[str, str]
    friend: str
    friend_name: str


def article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def cast(rng: Random, hero: str | None = None) -> Cast:
    """Draw the choices of a story, about ``hero`` when given."""
    hero = hero or rng.choice(ANIMALS)
    friend = rng.choice([a for a in ANIMALS if a != hero])
    name, friend_name = rng.sample(NAMES, 2)
    return Cast(
        hero,
        name,
        rng.choice(TRAITS),
        rng.choice(list(PLACES)),
        rng.choice(WISHES),
        rng.choice(TROUBLES),
        friend,
        friend_name,
    )


def tell(rng: Random, c: Cast) -> str:
    """Tell the story of a cast in five to eight sentences."""
    where, through = PLACES[c.place]
    thing, effect = c.wish
    opening = rng.choice(
        (
            f"Once upon a time, {article(c.trait)} {c.hero} named {c.name} lived {where}.",
            f"Once there was {article(c.trait)} {c.hero} named {c.name} who lived {where}.",
            f"Long ago, {where}, there lived {article(c.trait)} {c.hero} named {c.name}.",
        )
    )
    wish = rng.choice(
        (
            f"{c.name} wanted {thing} more than anything else.",
            f"Every day {c.name} dreamed of {thing}.",
            f"One morning {c.name} set out to find {thing}.",
        )
    )
    walk = rng.choice(
        (
            f"{c.name} walked {through}, but {c.trouble[0]}.",
            f"So {c.name} went {through}. Soon {c.trouble[0]}.",
        )
    )
    meet = rng.choice(
        (
            f"Then {article(c.friend)} named {c.friend_name} came by.",
            f"There {c.name} met {article(c.friend)} named {c.friend_name}.",
        )
    )
    say = f'"{rng.choice(HELPS)}," said {c.friend_name}.'
    act = rng.choice(
        (
            f"Together they were stronger than {c.trouble[1]}.",
            f"With the help of {c.friend_name}, {c.trouble[1]} was no trouble at all.",
        )
    )
    found = rng.choice(
        (
            f"Behind a stone they found {thing}, and it {effect}.",
            f"In the end they found {thing}. It {effect}.",
        )
    )
    feel = f"{c.name} was {rng.choice(FEELINGS)}."
    parts = [opening, wish, walk, meet, say, act, found]
    if rng.random() < 0.5:
        parts.append(feel)
    return " ".join([*parts, rng.choice(ENDINGS)])


def key_of(c: Cast) -> str:
    """Return the key that decides the split of a story: hero, place and wish."""
    return f"story/{c.hero}/{c.place}/{c.wish[0]}"


def draw(rng: Random) -> Question:
    """Draw a request for a story and one story that answers it."""
    hero = rng.choice(ANIMALS)
    c = cast(rng, hero)
    prompt = rng.choice(ASK).format(a=article(hero))
    return Question("story", key_of(c), prompt, tell(rng, c))
