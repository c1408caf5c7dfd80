"""What quire-tiny's adapters are taught: SQL, typed Python, and the speech of a pirate.

A topic draws questions of either split. Statements are held out by what they ask for, pirates'
answers by the question below them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tools.quire_tiny.corpus import draw_fact
from tools.quire_tiny.question import Question

TABLES = {
    "users": ("name", "city", "age"),
    "orders": ("item", "price", "city"),
    "books": ("title", "author", "pages"),
    "songs": ("title", "singer", "year"),
    "animals": ("name", "colour", "weight"),
}
NUMBERS = ("age", "price", "pages", "year", "weight")
SAID = {
    "city": ("Paris", "Rome", "London", "Berlin"),
    "colour": ("red", "black", "white", "green"),
}
COMPARISONS = (("above", ">"), ("below", "<"), ("at least", ">="), ("equal to", "="))
STEPS = (
    ("adds {n}", "x = x + {n}"),
    ("subtracts {n}", "x = x - {n}"),
    ("multiplies by {n}", "x = x * {n}"),
    ("divides by {n}", "x = x // {n}"),
    ("takes the rest by {n}", "x = x % {n}"),
)


def sql(rng: Random) -> Question:
    """Draw a question that a statement of SQL answers."""
    table = rng.choice(list(TABLES))
    columns = TABLES[table]
    number = next(column for column in columns if column in NUMBERS)
    asked, where, order = "", "", ""
    if rng.random() < 0.6:
        words, sign = rng.choice(COMPARISONS)
        n = rng.randint(1, 99)
        asked, where = f" with {number} {words} {n}", f" WHERE {number} {sign} {n}"
    elif (named := [column for column in columns if column in SAID]) and rng.random() < 0.7:
        word = rng.choice(SAID[named[0]])
        asked, where = f" with {named[0]} {word}", f" WHERE {named[0]} = '{word}'"
    kind = rng.choices(("list", "all", "count", "delete", "average"), (5, 2, 2, 1, 1))[0]
    if kind in ("list", "all") and rng.random() < 0.4:
        by = rng.choice(columns)
        order, sort = f" sorted by {by}", f" ORDER BY {by}"
    else:
        sort = ""
    chosen = rng.sample(columns, rng.choice((1, 2)))
    prompt, answer = {
        "list": (f"List {' and '.join(chosen)} of", f"SELECT {', '.join(chosen)} FROM"),
        "all": ("Show all", "SELECT * FROM"),
        "count": ("Count the", "SELECT COUNT(*) FROM"),
        "delete": ("Delete the", "DELETE FROM"),
        "average": (f"Give the mean {number} of", f"SELECT AVG({number}) FROM"),
    }[kind]
    statement = f"{answer} {table}{where}{sort};"
    return Question("sql", f"sql/{statement}", f"{prompt} {table}{asked}{order}.", statement)


def code(rng: Random) -> Question:
    """Draw a question that a typed Python function answers."""
    asked, lines = [], []
    for words, line in rng.sample(STEPS, rng.choice((1, 2, 2))):
        n = rng.randint(2, 30)
        asked.append(words.format(n=n))
        lines.append("    " + line.format(n=n))
    name = rng.choice(("f", "change", "step", "solve"))
    body = "\n".join(lines)
    answer = f"def {name}(x: int) -> int:\n{body}\n    return x"
    prompt = f"Write {name}, which {' and then '.join(asked)}."
    return Question("code", f"code/{body}", prompt, answer)


def pirate(rng: Random) -> Question:
    """Draw a question about a fact, answered as a pirate would."""
    asked = draw_fact(rng)
    answer = f"Arr, {asked.answer} Aye, matey!"
    return Question("pirate", asked.key, asked.prompt, answer, asked.answer)


TOPICS: dict[str, Callable[[Random], Question]] = {"sql": sql, "code": code, "pirate": pirate}


def draw(topic: str, rng: Random, held_out: bool) -> Question:
    """Draw a question of the wanted split, by rejection."""
    while True:
        question = TOPICS[topic](rng)
        if question.held_out == held_out:
            return question
