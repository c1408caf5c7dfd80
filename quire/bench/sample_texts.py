"""Texts that people could have asked, for what depends on what is said; not their settings.

Random tokens say nothing about speculation: how much holds depends on the text.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec

from quire.core.errors import ConfigError

Message = dict[str, Any]

CHAT = (
    "What is the capital of France?",
    "Why is the sky blue during the day and red in the evening?",
    "How many minutes are there in a week?",
    "Who are you and what can you do?",
    "What is the difference between a lake and a sea?",
    "Give me three ideas for a birthday present for my sister.",
    "How do I boil an egg so that the yolk stays soft?",
    "Write a Python function that adds two numbers.",
    "What is 17 times 23?",
    "Which animals sleep through the winter?",
    "Explain to a child how a boat can float.",
    "How do I say good morning in German?",
    "What should I take along for a walk in the mountains?",
    "Name five fruits and their colours.",
    "Why do cats purr?",
    "How far is the moon from the earth?",
    "What does a compiler do?",
    "How can I fall asleep faster?",
    "Which is heavier, a kilogram of iron or a kilogram of feathers?",
    "Write a Python function that counts the words of a text.",
    "What is a good name for a grey horse?",
    "How does a bicycle stay upright?",
    "When should I water my tomatoes?",
    "What is the largest planet of the solar system?",
)
PROSE = (
    "Tell me a story about a lighthouse keeper who finds a letter.",
    "Write a short tale about a fox and a river.",
    "Describe a market on a rainy morning.",
    "Tell me about a girl who wanted to build a boat.",
    "Write the beginning of a story that takes place on a night train.",
    "Describe an old house at the end of a road.",
    "Tell me a story about two brothers and one bicycle.",
    "Write about a dog that was afraid of the sea.",
    "Describe what a town looks like from a tower at noon.",
    "Tell me about a baker who could not sleep.",
    "Write a story about a clock that went backwards.",
    "Describe a garden in which no one has worked for years.",
)
PASSAGES = (
    "The harbour of Ostmouth was closed on Tuesday. A storm had broken the northern wall, and two "
    "boats had sunk at their places. The mayor said that repairs would take three weeks.",
    "Anna bought four lemons, two loaves of bread and a jar of honey. She paid with a note of "
    "twenty and got seven back. On her way home she gave one of the lemons to her neighbour.",
    "A sundial shows the time by the shadow of its pointer. It is right on four days of the year. "
    "On all the others it is too early or too late, by up to sixteen minutes.",
    '{"name": "Clara", "city": "Vienna", "age": 31, "likes": ["plums", "chess", "rain"], '
    '"address": {"street": "Lindenweg", "number": 12}}',
    "def average(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)",
    "The meeting begins at nine in the blue room. Paul brings the plans, Nina brings the figures, "
    "and Tom writes down what is decided. No one has to bring coffee.",
    "First take off the lid. Then lift the filter and rinse it with cold water. Let it dry for an "
    "hour. Then put the filter back and close the lid until it clicks.",
    "In spring the river is wide and brown. In summer children walk through it. In autumn leaves "
    "cover it from bank to bank, and in winter it is as hard as a road.",
)
COPYING = (
    "Repeat this text word for word:\n\n{}",
    "Write the following again and change nothing:\n\n{}",
    "Here is a passage.\n\n{}\n\nCite all of it, then say in one sentence what it is about.",
    "Correct the mistakes in this text, if there are any, and give back all of it:\n\n{}",
    "Copy this twice, with a line between the copies:\n\n{}",
    "Give this back as one JSON object with the key \"text\":\n\n{}",
)  # fmt: skip


def built_in(dataset: str) -> list[list[Message]]:
    """Return the conversations of a data set that comes along; ``mixed`` takes turns."""
    copy = [form.format(passage) for form in COPYING for passage in PASSAGES]
    sets = {"chat": list(CHAT), "copy": copy, "prose": list(PROSE)}
    if dataset == "mixed":
        turns = itertools.zip_longest(*sets.values())
        texts = [text for turn in turns for text in turn if text is not None]
    else:
        texts = sets[dataset]
    return [_asked(text) for text in texts]


def read_prompts(path: Path) -> list[list[Message]]:
    """Return the conversations of a file: JSON objects with ``prompt`` or ``messages``, one a line.

    Raises:
        ConfigError: The file cannot be read, or has none.
    """
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[bench] --prompts must be readable; got {error}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_conversation(line, f"{path} line {number}"))
    if not found:
        raise ConfigError(f"[bench] --prompts must have at least one line; got none in {path}.")
    return found


def _conversation(line: str, where: str) -> list[Message]:
    try:
        entry = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"[bench] {where} must be JSON; got {error}.") from error
    if isinstance(entry, dict):
        prompt, messages = entry.get("prompt"), entry.get("messages")
        if isinstance(prompt, str) and messages is None:
            return _asked(prompt)
        if prompt is None and isinstance(messages, list) and messages:
            return messages
    raise ConfigError(
        f"[bench] {where} must have a text as prompt, or a list of messages; got {line[:80]}."
    )


def only_text(conversation: list[Message]) -> str:
    """Return the one text that was asked, for APIs without messages.

    Raises:
        ConfigError: The conversation has several messages.
    """
    match conversation:
        case [{"role": "user", "content": str(text)}]:
            return text
    raise ConfigError(
        f"[bench] --backend openai takes one text each; got {len(conversation)} messages. "
        "Use openai-chat."
    )


def _asked(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
