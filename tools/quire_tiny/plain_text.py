"""Plain documents without any chat: stories, and encyclopaedic paragraphs made of the facts."""

from __future__ import annotations

from random import Random

from tools.quire_tiny import stories
from tools.quire_tiny.facts import culture, nature, world
from tools.quire_tiny.question import is_held_out

Document = tuple[str, str]


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def country(rng: Random) -> Document:
    """Describe a country; the order of the sentences decides the split."""
    capital, continent, language, currency = world.columns()
    k = rng.choice(list(capital))
    sentences = [
        f"{capitalised(k)} is a country in {continent[k]}.",
        f"The capital of {k} is {capital[k]}.",
        f"The main language of {k} is {language[k]}.",
        f"The currency of {k} is the {currency[k]}.",
    ]
    rest = sentences[1:]
    rng.shuffle(rest)
    cities = [city for city, land in world.CITIES.items() if land == k]
    if cities:
        rest.append(f"{rng.choice(cities)} is a city in {k}.")
    text = " ".join([sentences[0], *rest])
    return text, f"country/{text}"


def element(rng: Random) -> Document:
    """Describe two or three chemical elements."""
    symbols, numbers = nature.elements()
    chosen = rng.sample(list(symbols), rng.randint(2, 3))
    text = " ".join(
        f"{capitalised(k)} is a chemical element. The symbol of {k} is {symbols[k]}. "
        f"The atomic number of {k} is {numbers[k]}."
        for k in chosen
    )
    return text, f"elements/{chosen}"


def animals(rng: Random) -> Document:
    """Describe two or three animals."""
    chosen = rng.sample(sorted(nature.CLASSES), rng.randint(2, 3))
    parts = []
    for k in chosen:
        parts.append(f"{capitalised(k)} is {nature.CLASSES[k]}.")
        if k in nature.LEGS:
            parts.append(f"{capitalised(k)} has {nature.LEGS[k]} legs.")
        if k in nature.SOUNDS:
            parts.append(f"{capitalised(k)} {nature.SOUNDS[k]}.")
        if k in nature.BABIES:
            parts.append(f"The young of {k} is called {nature.BABIES[k]}.")
        if k in nature.FOOD:
            parts.append(f"{capitalised(k)} eats {nature.FOOD[k]}.")
    return " ".join(parts), f"animals/{chosen}"


def works(rng: Random) -> Document:
    """Say who wrote, painted, composed, invented and discovered a few things."""
    tables = (
        (culture.BOOKS, "was written by"),
        (culture.PAINTINGS, "was painted by"),
        (culture.MUSIC, "was composed by"),
        (culture.INVENTIONS, "was invented by"),
    )
    parts, chosen = [], []
    for table, verb in rng.sample(tables, 3):
        k = rng.choice(sorted(table))
        chosen.append(k)
        parts.append(f"{capitalised(k)} {verb} {table[k]}.")
    return " ".join(parts), f"works/{chosen}"


def story(rng: Random) -> Document:
    """Tell a story with a title."""
    c = stories.cast(rng)
    text = stories.tell(rng, c)
    if rng.random() < 0.3:
        text = f"The {capitalised(c.hero)} and the {capitalised(c.friend)}\n\n{text}"
    return text, stories.key_of(c)


DRAWS = (story, country, element, animals, works)
WEIGHTS = (55, 18, 8, 11, 8)


def draw(rng: Random, held_out: bool) -> str:
    """Draw one document of the wanted split, by rejection."""
    while True:
        text, key = rng.choices(DRAWS, WEIGHTS)[0](rng)
        if is_held_out(key) == held_out:
            return text


def draw_page(rng: Random, held_out: bool, num_documents: int) -> str:
    """Join several documents by blank lines."""
    return "\n\n".join(draw(rng, held_out) for _ in range(num_documents))
