"""Short stories from a small grammar: hero, place, wish, trouble, friend and ending."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.quire_tiny.data import load
from tools.quire_tiny.question import Question

_DATA = load("stories")


@dataclass(frozen=True)
class Cast:
    """The choices that make one story."""

    hero: str
    name: str
    trait: str
    place: str
    wish: list[str]
    trouble: list[str]
    friend: str
    friend_name: str


def article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def cast(rng: Random, hero: str | None = None) -> Cast:
    """Draw the choices of a story, about ``hero`` when given."""
    hero = hero or rng.choice(_DATA["heroes"])
    friend = rng.choice([a for a in _DATA["heroes"] if a != hero])
    name, friend_name = rng.sample(_DATA["names"], 2)
    return Cast(
        hero,
        name,
        rng.choice(_DATA["traits"]),
        rng.choice(list(_DATA["places"])),
        rng.choice(_DATA["wishes"]),
        rng.choice(_DATA["troubles"]),
        friend,
        friend_name,
    )


def tell(rng: Random, c: Cast) -> str:
    """Tell the story of a cast in five to eight sentences."""
    where, through = _DATA["places"][c.place]
    words = {
        "name": c.name,
        "hero": c.hero,
        "a_trait": article(c.trait),
        "a_friend": article(c.friend),
        "friend_name": c.friend_name,
        "where": where,
        "through": through,
    }
    words["thing"], words["effect"] = c.wish
    words["trouble"], words["the_trouble"] = c.trouble

    def draw_sentence(kind: str) -> str:
        return rng.choice(_DATA["sentences"][kind]).format(**words)

    parts = [draw_sentence(kind) for kind in ("opening", "wish", "walk", "meet")]
    parts.append(f'"{rng.choice(_DATA["helps"])}," said {c.friend_name}.')
    parts += [draw_sentence("act"), draw_sentence("found")]
    feel = f"{c.name} was {rng.choice(_DATA['feelings'])}."
    if rng.random() < 0.5:
        parts.append(feel)
    return " ".join([*parts, draw_sentence("ending")])


def key_of(c: Cast) -> str:
    """Return the key that decides the split of a story: hero, place and wish."""
    return f"story/{c.hero}/{c.place}/{c.wish[0]}"


def draw(rng: Random) -> Question:
    """Draw a request for a story and one story that answers it."""
    hero = rng.choice(_DATA["heroes"])
    c = cast(rng, hero)
    prompt = rng.choice(_DATA["ask"]).format(a=article(hero))
    return Question("story", key_of(c), prompt, tell(rng, c))
