"""Plain documents without any chat: stories, and encyclopaedic paragraphs made of the facts."""

from __future__ import annotations

from random import Random

from tools.quire_tiny import stories
from tools.quire_tiny.facts import table
from tools.quire_tiny.question import is_held_out

Document = tuple[str, str]


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def country(rng: Random) -> Document:
    """Describe a country; the order of the sentences decides the split."""
    capital, continent, language, currency = (table("countries", i) for i in range(4))
    k = rng.choice(list(capital))
    sentences = [
        f"{capitalised(k)} is a country in {continent[k]}.",
        f"The capital of {k} is {capital[k]}.",
        f"The main language of {k} is {language[k]}.",
        f"The currency of {k} is the {currency[k]}.",
    ]
    rest = sentences[1:]
    rng.shuffle(rest)
    cities = [city for city, land in table("cities").items() if land == k]
    if cities:
        rest.append(f"{rng.choice(cities)} is a city in {k}.")
    text = " ".join([sentences[0], *rest])
    return text, f"country/{text}"


def element(rng: Random) -> Document:
    """Describe two or three chemical elements."""
    symbols, numbers = table("elements", 0), table("elements", 1)
    chosen = rng.sample(list(symbols), rng.randint(2, 3))
    text = " ".join(
        f"{capitalised(k)} is a chemical element. The symbol of {k} is {symbols[k]}. "
        f"The atomic number of {k} is {numbers[k]}."
        for k in chosen
    )
    return text, f"elements/{chosen}"


def animals(rng: Random) -> Document:
    """Describe two or three animals."""
    classes, legs, sounds = table("classes"), table("legs"), table("sounds")
    babies, food = table("babies"), table("food")
    chosen = rng.sample(sorted(classes), rng.randint(2, 3))
    parts = []
    for k in chosen:
        parts.append(f"{capitalised(k)} is {classes[k]}.")
        if k in legs:
            parts.append(f"{capitalised(k)} has {legs[k]} legs.")
        if k in sounds:
            parts.append(f"{capitalised(k)} {sounds[k]}.")
        if k in babies:
            parts.append(f"The young of {k} is called {babies[k]}.")
        if k in food:
            parts.append(f"{capitalised(k)} eats {food[k]}.")
    return " ".join(parts), f"animals/{chosen}"


def works(rng: Random) -> Document:
    """Say who wrote, painted, composed, invented and discovered a few things."""
    tables = (
        ("books", "was written by"),
        ("paintings", "was painted by"),
        ("music", "was composed by"),
        ("inventions", "was invented by"),
    )
    parts, chosen = [], []
    for name, verb in rng.sample(tables, 3):
        maker = table(name)
        k = rng.choice(sorted(maker))
        chosen.append(k)
        parts.append(f"{capitalised(k)} {verb} {maker[k]}.")
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
