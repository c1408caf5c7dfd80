"""The six functions of the chats with tools: schemas, ways to ask, what they return, what is said.

It owns no chats; ``tool_use.py`` does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.quire_tiny import arithmetic, json_and_code, multi_turn
from tools.quire_tiny.facts import table
from tools.quire_tiny.question import is_held_out

CITIES = (
    "New York, Los Angeles, Chicago, Boston, Seattle, Toronto, Montreal, Sydney, Melbourne, "
    "Munich, Hamburg, Cologne, Frankfurt, Zurich, Geneva, Milan, Naples, Venice, Barcelona, "
    "Valencia, Porto, Lyon, Marseille, Manchester, Liverpool, Glasgow, Istanbul, Dubai, Mumbai, "
    "Shanghai, Osaka, Kyoto"
).split(", ")
ITEMS = (
    "chair, table, lamp, book, bag, hat, coat, cup, knife, pen, bike, phone, watch, ring, "
    "cheese, bread, cake, desk, bed, sofa, clock, mirror, camera, guitar, ball, kite, shirt, "
    "car, boat, plate"
).split(", ") + json_and_code.FRUITS
SKIES = "sunny, rainy, cloudy, windy, foggy, snowy, hot, cold, mild, stormy".split(", ")
THINGS = "keys, lamp, car, book, phone, cake, bike, dog, cat, window, door, bag".split(", ")


@dataclass(frozen=True)
class Tool:
    """A function: schema, and the ways to ask for it with ``{arg}`` for each argument.

    ``answer`` is the sentence said of the result, with ``{result}`` for the result as text.
    """

    name: str
    description: str
    parameters: dict[str, str]
    prompts: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Call:
    """One use of a tool: how it is asked for, what is passed, what comes back, what is said."""

    tool: Tool
    prompt: str
    arguments: dict[str, Any]
    response: str
    answer: str
    # A task of another file that this call would give away.
    task: str = ""

    @property
    def key(self) -> str:
        """Name what is asked, so that it can be held out."""
        return f"call/{self.tool.name}/{json.dumps(self.arguments)}"

    @property
    def held_out(self) -> bool:
        """Whether this call belongs to the evaluation."""
        return is_held_out(self.key) or (self.task != "" and is_held_out(self.task))


KIT = (
    Tool(
        "get_weather",
        "Get the weather in a city.",
        {"city": "string"},
        (
            "What is the weather in {city}?",
            "What is the weather like in {city}?",
            "How is the weather in {city}?",
            "What's the weather in {city}?",
            "Tell me the weather in {city}.",
            "Is it sunny in {city}?",
            "Weather in {city}, please.",
            "What is the weather in {city} today?",
        ),
        "The weather in {city} is {result}.",
    ),
    Tool(
        "get_time",
        "Get the time in a city.",
        {"city": "string"},
        (
            "What time is it in {city}?",
            "What is the time in {city}?",
            "Tell me the time in {city}.",
            "What time is it now in {city}?",
            "How late is it in {city}?",
            "Do you know the time in {city}?",
        ),
        "The time in {city} is {result}.",
    ),
    Tool(
        "calculate",
        "Calculate an expression.",
        {"expression": "string"},
        (),  # asked and answered as in ``arithmetic.py``
        "",
    ),
    Tool(
        "set_timer",
        "Set a timer.",
        {"minutes": "integer"},
        (
            "Set a timer for {minutes} minutes.",
            "Start a timer for {minutes} minutes.",
            "Set a {minutes} minute timer.",
            "Timer for {minutes} minutes, please.",
            "Tell me when {minutes} minutes are over.",
            "Please set a timer of {minutes} minutes.",
        ),
        "The timer is set for {minutes} minutes.",
    ),
    Tool(
        "get_price",
        "Get the price of an item.",
        {"item": "string"},
        (
            "What is the price of the {item}?",
            "How much is the {item}?",
            "What does the {item} cost?",
            "How much does the {item} cost?",
            "Tell me the price of the {item}.",
            "Find the price of the {item}.",
        ),
        "The price of the {item} is {result}.",
    ),
    Tool(
        "send_message",
        "Send a message to a person.",
        {"to": "string", "text": "string"},
        (
            "Tell {to}: {text}.",
            "Write to {to}: {text}.",
            "Send a message to {to}: {text}.",
            "Send {to} this message: {text}.",
            "Please send {to} a message: {text}.",
        ),
        "The message to {to} is sent.",
    ),
)


def schema(rng: Random, tool: Tool) -> dict[str, Any]:
    """Return the tool as an entry of a request's ``tools``; clients leave some of it out."""
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {k: {"type": kind} for k, kind in tool.parameters.items()},
    }
    if rng.random() < 0.9:
        parameters["required"] = list(tool.parameters)
    function: dict[str, Any] = {"name": tool.name}
    if rng.random() < 0.75:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": parameters}}


def city(rng: Random) -> str:
    """Draw a capital or another large city."""
    return rng.choice(list(table("countries", 0).values()) if rng.random() < 0.75 else CITIES)


def sum_call(rng: Random, tool: Tool) -> Call:
    """Draw a sum, a difference, or a product beyond the tables of ``arithmetic.py``."""
    high = rng.choice((100, 100, 1000, 10000))
    b, a = sorted((rng.randrange(high), rng.randrange(13, high)))
    forms, sign, result = rng.choice(
        (
            (arithmetic.ADD, "+", a + b),
            (arithmetic.SUBTRACT, "-", a - b),
            (arithmetic.MULTIPLY, "*", a * b),
        )
    )
    task = {"+": f"add/{b}/{a}", "-": f"subtract/{a}/{b}", "*": ""}[sign]
    expression = f"{a} {sign} {b}"
    prompt = rng.choice(forms).format(a=a, b=b)
    answer = f"{expression} = {result}"
    return Call(tool, prompt, {"expression": expression}, wrapped(rng, result), answer, task)


def wrapped(rng: Random, result: Any, name: str = "result") -> str:
    """Write a result as programs do: in an object mostly, else alone."""
    return json.dumps({name: result}) if rng.random() < 0.75 else str(result)


def text(rng: Random) -> str:
    """Draw a short message without its full stop."""
    name, thing, hour = rng.choice(multi_turn.NAMES), rng.choice(THINGS), rng.randint(1, 12)
    forms = (
        f"I am in {city(rng)}",
        f"dinner is at {hour}",
        f"see you at {hour}",
        f"the {thing} is broken",
        f"I have your {thing}",
        f"call {name}",
        f"{name} is here",
        f"buy {hour} {rng.choice(json_and_code.FRUITS)}s",
        f"I will be {rng.randint(5, 60)} minutes late",
        rng.choice(("I am late", "call me", "happy birthday", "I am home", "good luck")),
    )
    return rng.choice(forms)


def draw_call(rng: Random, tool: Tool) -> Call:
    """Draw one use of a tool, of either split."""
    if tool.name == "calculate":
        return sum_call(rng, tool)
    arguments, said, response = values(rng, tool)
    prompt = rng.choice(tool.prompts).format(**arguments)
    return Call(tool, prompt, arguments, response, tool.answer.format(**arguments, result=said))


def values(rng: Random, tool: Tool) -> tuple[dict[str, Any], str, str]:
    """Draw arguments, the result as text, and the response."""
    if tool.name == "get_weather":
        sky, degrees = rng.choice(SKIES), rng.randint(0, 39)
        if rng.random() < 0.5:
            return {"city": city(rng)}, sky, wrapped(rng, sky, "weather")
        response = json.dumps({"weather": sky, "degrees": degrees})
        return {"city": city(rng)}, f"{sky}, {degrees} degrees", response
    if tool.name == "get_time":
        time = f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}"
        return {"city": city(rng)}, time, wrapped(rng, time, "time")
    if tool.name == "get_price":
        price = f"{rng.randint(1, 99)} {rng.choice(('euros', 'dollars', 'pounds'))}"
        return {"item": rng.choice(ITEMS)}, price, wrapped(rng, price, "price")
    done = wrapped(rng, rng.choice(("ok", "done", "set", "sent")), "status")
    if tool.name == "set_timer":
        return {"minutes": rng.randint(2, 180)}, "", done
    return {"to": rng.choice(multi_turn.NAMES), "text": text(rng)}, "", done
