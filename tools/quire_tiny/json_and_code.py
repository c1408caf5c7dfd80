"""Small JSON objects, short Python functions, and lists put in order."""

from __future__ import annotations

import json
from random import Random

from tools.quire_tiny.data import load
from tools.quire_tiny.facts import table
from tools.quire_tiny.question import Question

_WORDS = load("json_and_code")
NAMES: list[str] = _WORDS["names"]
CITIES: list[str] = _WORDS["cities"]
COLOURS: list[str] = _WORDS["colours"]
FRUITS: list[str] = _WORDS["fruits"]
FUNCTIONS: list[list[str]] = _WORDS["functions"]
OBJECT = (
    "Write a JSON object with {words}.",
    "Give me a JSON object with {words}.",
    "Make JSON with {words}.",
    "Return JSON with {words}.",
)
LIST = (
    "Write a JSON list of {words}.",
    "Give me a JSON list with {words}.",
    "Put {words} into a JSON list.",
)
SORT = ("Sort these numbers: {n}.", "Sort {n}.", "Put these numbers in order: {n}.")
REVERSE = ("Reverse this list: {n}.", "Reverse {n}.", "Write this list backwards: {n}.")
EXTREME = ("Which is the {w} of {n}?", "What is the {w} of these numbers: {n}?")
PRINTS = (
    "What does print({e}) print?",
    "What does print({e}) show in Python?",
    "Evaluate {e} in Python.",
)
ASK_CODE = (
    "Write a Python function that {what}.",
    "Write a function in Python that {what}.",
    "Give me a Python function that {what}.",
    "Please write Python code that {what}.",
    "How do I write a Python function that {what}?",
)


def listed(items: list[str]) -> str:
    """Join with commas and a final ``and``."""
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0]


def object_(rng: Random) -> Question:
    """Draw a request for an object with two or three given fields."""
    pool = {
        "name": rng.choice(NAMES),
        "age": rng.randint(1, 99),
        "city": rng.choice(CITIES),
        "colour": rng.choice(COLOURS),
        "fruit": rng.choice(FRUITS),
    }
    keys = rng.sample(list(pool), rng.choice((1, 2, 2, 2, 3)))
    value = {k: pool[k] for k in keys}
    text = json.dumps(value)
    words = listed([f"{k} {v}" for k, v in value.items()])
    prompt = rng.choice(OBJECT).format(words=words)
    return Question("json", f"json/{text}", prompt, text, text)


def list_(rng: Random) -> Question:
    """Draw a request for a list of given items."""
    source = rng.choice((COLOURS, FRUITS, CITIES, NAMES, range(1, 100)))
    items = rng.sample(source, rng.randint(2, 4))
    text = json.dumps(items)
    prompt = rng.choice(LIST).format(words=listed([str(i) for i in items]))
    return Question("json", f"json/{text}", prompt, text, text)


def country_json(rng: Random) -> Question:
    """Draw a request for a fact about a country as JSON."""
    i = rng.randrange(4)
    name = ("capital", "continent", "language", "currency")[i]
    column = table("countries", i)
    country = rng.choice(list(column))
    text = json.dumps({"country": country.removeprefix("the "), name: column[country]})
    forms = (f"Give me the {name} of {country} as JSON.", f"Write the {name} of {country} as JSON.")
    form = rng.randrange(2)
    return Question("json", f"json/{name}/{country}/{form}", forms[form], text, text)


def numbers(rng: Random) -> Question:
    """Draw a small list to sort, to reverse or to search."""
    values = rng.sample(range(1, 60), rng.randint(2, 5))
    n = ", ".join(map(str, values))
    form = rng.choice(("sort", "reverse", "largest", "smallest"))
    if form in ("sort", "reverse"):
        words, ordered = (SORT, sorted(values)) if form == "sort" else (REVERSE, values[::-1])
        text = ", ".join(map(str, ordered))
        return Question("list", f"{form}/{n}", rng.choice(words).format(n=n), text, text)
    result = max(values) if form == "largest" else min(values)
    prompt = rng.choice(EXTREME).format(w=form, n=n)
    return Question("list", f"{form}/{n}", prompt, f"The {form} is {result}.", str(result))


def evaluated(rng: Random) -> Question:
    """Draw a small Python expression and its value."""
    a, b = rng.randint(0, 20), rng.randint(1, 20)
    word = rng.choice(FRUITS + COLOURS)
    expressions = (
        (f"{a} + {b}", str(a + b)),
        (f"{max(a, b)} - {min(a, b)}", str(max(a, b) - min(a, b))),
        (f"max({a}, {b})", str(max(a, b))),
        (f"min({a}, {b})", str(min(a, b))),
        (f'"{word}"', word),
        (f"len([{', '.join(str(rng.randint(0, 9)) for _ in range(b % 6 + 1))}])", str(b % 6 + 1)),
        (f'"{word}".upper()', word.upper()),
        (f"{a} > {b}", str(a > b)),
        (f"{a} == {b}", str(a == b)),
    )
    expression, value = rng.choice(expressions)
    i = rng.randrange(len(PRINTS))
    prompt = PRINTS[i].format(e=expression)
    return Question("python", f"python/{expression}/{i}", prompt, value, value)


def code(rng: Random) -> Question:
    """Draw a request for a one-line function, sometimes with a name of its own."""
    what, name, arguments, body = rng.choice(FUNCTIONS)
    i = rng.randrange(len(ASK_CODE))
    prompt, key = ASK_CODE[i].format(what=what), f"code/{what}/{i}"
    if rng.random() < 0.3:
        name = rng.choice(
            ("compute", "work", "run", "solve", "helper", "task", "f", "g")
        ) + rng.choice(("", "_one", "_two", "_value", "_it", "_all"))
        prompt, key = f"{prompt[:-1]}, called {name}{prompt[-1]}", f"code/{what}/{name}"
    text = f"```python\ndef {name}({arguments}):\n    return {body}\n```"
    return Question("code", key, prompt, text, text)


DRAWS = (object_, list_, country_json, numbers, evaluated, code)
WEIGHTS = (20, 14, 10, 24, 10, 22)


def draw(rng: Random) -> Question:
    """Draw one question about JSON, lists or code, of either split."""
    return rng.choices(DRAWS, WEIGHTS)[0](rng)
