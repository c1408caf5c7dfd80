"""Arithmetic: every question is drawn by its operands, and whole operands are held out.

Sums, differences, comparisons, sequences and counts are held out by operands; products and
quotients up to twelve, which can only be memorised, by operands and phrasing.
"""

from __future__ import annotations

from random import Random

from tools.quire_tiny.question import Question, is_held_out

ADD = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a}+{b}=",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "What's {a} + {b}?",
    "Calculate {a} + {b}.",
    "What is the sum of {a} and {b}?",
)
SUBTRACT = (
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "{a} - {b}",
    "{a}-{b}=",
    "Subtract {b} from {a}.",
    "How much is {a} minus {b}?",
    "Calculate {a} - {b}.",
    "Take {b} away from {a}.",
)
MULTIPLY = (
    "What is {a} times {b}?",
    "What is {a} * {b}?",
    "What is {a} x {b}?",
    "{a} * {b}",
    "Multiply {a} by {b}.",
    "How much is {a} times {b}?",
    "Calculate {a} * {b}.",
    "What is the product of {a} and {b}?",
)
DIVIDE = (
    "What is {a} divided by {b}?",
    "What is {a} / {b}?",
    "{a} / {b}",
    "Divide {a} by {b}.",
    "How much is {a} divided by {b}?",
    "Calculate {a} / {b}.",
)
LARGER = (
    "Which is larger, {a} or {b}?",
    "Which number is greater, {a} or {b}?",
    "What is larger: {a} or {b}?",
)
SMALLER = (
    "Which is smaller, {a} or {b}?",
    "Which number is smaller, {a} or {b}?",
    "What is less: {a} or {b}?",
)
AFTER = ("What number comes after {a}?", "Which number follows {a}?", "What comes after {a}?")
BEFORE = ("What number comes before {a}?", "Which number is just before {a}?")
COUNT = (
    "Count from {a} to {b}.",
    "Please count from {a} to {b}.",
    "Can you count from {a} to {b}?",
)
PARITY = ("Is {a} even or odd?", "Is the number {a} odd or even?", "Tell me if {a} is even or odd.")
DOUBLE = ("What is the double of {a}?", "Double {a}.", "What is twice {a}?")
HALF = ("What is half of {a}?", "Give me half of {a}.", "What is the half of {a}?")
STORY_ADD = (
    "{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?",
    "{n} has {a} {t} and buys {b} more. How many {t} are there now?",
)
STORY_SUBTRACT = (
    "{n} has {a} {t} and gives away {b}. How many {t} are left?",
    "{n} has {a} {t} and loses {b}. How many {t} are left?",
)
NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Tom",
    "Lucy",
    "Max",
    "Nina",
    "Paul",
    "Sara",
    "Leo",
)
THINGS = (
    "apples",
    "books",
    "coins",
    "pens",
    "marbles",
    "eggs",
    "stamps",
    "cards",
    "shells",
    "balls",
)


def operand(rng: Random) -> int:
    """Draw an operand, mostly of two digits."""
    digits = rng.choices((1, 2, 3), (20, 60, 20))[0]
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def add(rng: Random) -> Question:
    """Draw a sum."""
    a, b = operand(rng), operand(rng)
    low, high = sorted((a, b))
    prompt = rng.choice(ADD).format(a=a, b=b)
    return Question("add", f"add/{low}/{high}", prompt, f"{a} + {b} = {a + b}", str(a + b))


def subtract(rng: Random) -> Question:
    """Draw a difference that is not negative."""
    b, a = sorted((operand(rng), operand(rng)))
    prompt = rng.choice(SUBTRACT).format(a=a, b=b)
    return Question("subtract", f"subtract/{a}/{b}", prompt, f"{a} - {b} = {a - b}", str(a - b))


def multiply(rng: Random) -> Question:
    """Draw a product of the tables up to twelve."""
    a, b, i = rng.randint(0, 12), rng.randint(0, 12), rng.randrange(len(MULTIPLY))
    prompt = MULTIPLY[i].format(a=a, b=b)
    return Question("multiply", f"multiply/{a}/{b}/{i}", prompt, f"{a} * {b} = {a * b}", str(a * b))


def divide(rng: Random) -> Question:
    """Draw an exact quotient of the tables up to twelve."""
    b, c, i = rng.randint(1, 12), rng.randint(0, 12), rng.randrange(len(DIVIDE))
    prompt = DIVIDE[i].format(a=b * c, b=b)
    return Question("divide", f"divide/{b * c}/{b}/{i}", prompt, f"{b * c} / {b} = {c}", str(c))


def compare(rng: Random) -> Question:
    """Draw a comparison of two different numbers."""
    a, b = operand(rng), operand(rng)
    if a == b:
        b += 1
    low, high = sorted((a, b))
    key = f"compare/{low}/{high}"
    if rng.random() < 0.5:
        prompt = rng.choice(LARGER).format(a=a, b=b)
        return Question("compare", key, prompt, f"{high} is larger than {low}.", str(high))
    prompt = rng.choice(SMALLER).format(a=a, b=b)
    return Question("compare", key, prompt, f"{low} is smaller than {high}.", str(low))


def neighbour(rng: Random) -> Question:
    """Draw the number after or before another."""
    a = operand(rng) + 1
    step, words, word = rng.choice(((1, AFTER, "after"), (-1, BEFORE, "before")))
    prompt = rng.choice(words).format(a=a)
    answer = f"The number {word} {a} is {a + step}."
    return Question("neighbour", f"{word}/{a}", prompt, answer, str(a + step))


def count(rng: Random) -> Question:
    """Draw a short stretch of counting, up or down."""
    a = rng.randint(1, 40)
    b = max(1, a + rng.choice((-1, 1, 1, 1)) * rng.randint(2, 9))
    step = 1 if b >= a else -1
    numbers = ", ".join(str(i) for i in range(a, b + step, step))
    return Question("count", f"count/{a}/{b}", rng.choice(COUNT).format(a=a, b=b), numbers)


def simple(rng: Random) -> Question:
    """Draw a parity, a double or a half."""
    a = rng.randint(1, 100)
    form = rng.randrange(3)
    if form == 0:
        word = "odd" if a % 2 else "even"
        prompt = rng.choice(PARITY).format(a=a)
        return Question("parity", f"parity/{a}", prompt, f"{a} is {word}.", word.capitalize())
    if form == 1:
        prompt = rng.choice(DOUBLE).format(a=a)
        return Question("double", f"double/{a}", prompt, f"2 * {a} = {2 * a}", str(2 * a))
    prompt = rng.choice(HALF).format(a=2 * a)
    return Question("half", f"half/{a}", prompt, f"{2 * a} / 2 = {a}", str(a))


def word_problem(rng: Random) -> Question:
    """Draw a sum or a difference told as a situation."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    if rng.random() < 0.5:
        words, result, sign = STORY_ADD, a + b, "+"
        key = f"add/{min(a, b)}/{max(a, b)}"
    else:
        a, b = max(a, b), min(a, b)
        words, result, sign = STORY_SUBTRACT, a - b, "-"
        key = f"subtract/{a}/{b}"
    prompt = rng.choice(words).format(n=name, a=a, b=b, t=thing)
    answer = f"{a} {sign} {b} = {result}, so {name} has {result} {thing}."
    return Question("word_problem", key, prompt, answer, str(result))


DRAWS = (add, subtract, multiply, divide, compare, neighbour, count, simple, word_problem)
WEIGHTS = (28, 24, 14, 10, 6, 4, 5, 7, 7)


def draw(rng: Random) -> Question:
    """Draw one arithmetic question of either split."""
    return rng.choices(DRAWS, WEIGHTS)[0](rng)


def drill(rng: Random, num_lines: int) -> str:
    """Write lines of sums and differences of the training split, as plain text."""
    lines: list[str] = []
    while len(lines) < num_lines:
        high = rng.choices((20, 100, 1000), (25, 60, 15))[0]
        a, b = rng.randrange(high), rng.randrange(high if rng.random() < 0.7 else 20)
        low, top = min(a, b), max(a, b)
        if rng.random() < 0.55:
            key, line = f"add/{low}/{top}", f"{a} + {b} = {a + b}"
        else:
            key, line = f"subtract/{top}/{low}", f"{top} - {low} = {top - low}"
        if not is_held_out(key):
            lines.append(line)
    return "\n".join(lines)
