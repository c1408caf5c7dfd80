"""Rounds of the same requests on an engine without proposals and on others: times and answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import results
from quire import LLM
from quire.core.outputs import RequestOutput

Ask = Callable[[LLM], list[RequestOutput]]
OFF = "off"
#: Of tenths of a second: whether it pays to be ready takes some comparisons at each load.
LEARNING_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Answered:
    """What requests brought: token ids of each, seconds and steps of all."""

    tokens: list[list[int]]
    seconds: float
    steps: float

    @property
    def tokens_per_step(self) -> float:
        """Tokens of all requests in a step, steps of prompts included."""
        return round(sum(map(len, self.tokens)) / self.steps, 2)


def answer(llm: LLM, ask: Ask) -> Answered:
    """Have an engine answer, and time it."""
    before = llm.engine.stats()["num_steps"]
    start = time.perf_counter()
    outputs = ask(llm)
    seconds = time.perf_counter() - start
    steps = llm.engine.stats()["num_steps"]
    assert isinstance(before, float | int) and isinstance(steps, float | int)
    return Answered([list(o.outputs[0].token_ids) for o in outputs], seconds, steps - before)


def take_turns(
    engines: Mapping[str, LLM], ask_in: Callable[[int], Ask], rounds: int
) -> dict[str, Any]:
    """Have engines answer the same, round after round.

    Args:
        engines: ``off`` among them. Another one begins each round.
        ask_in: Returns what is asked in a round.
        rounds: Besides the first, and those in which an engine learns what pays.

    Returns:
        As :func:`compared`; besides ``speedup_learning``, the ratio in the rounds of learning.
    """
    found: dict[str, list[Answered]] = {name: [] for name in engines}
    names = list(engines)
    for number in range(1 + LEARNING_ROUNDS + rounds):
        ask = ask_in(number)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(answer(engines[name], ask))
        for name, answers in found.items():
            same = answers[-1].tokens == found[OFF][-1].tokens
            assert same, f"other tokens with {name} in round {number}"
    at = 1 + LEARNING_ROUNDS
    rows = compared({name: answers[at:] for name, answers in found.items()})
    first = compared({name: answers[1:at] for name, answers in found.items()})
    for name, row in rows.items():
        row["speedup_learning"] = first[name]["speedup"]
    return rows


def compared(found: Mapping[str, list[Answered]]) -> dict[str, Any]:
    """Return for each choice its seconds, the ratio to ``off`` of each round, and tokens a step."""
    off = [answered.seconds for answered in found[OFF]]
    rows = {}
    for name, answers in found.items():
        taken = [answered.seconds for answered in answers]
        rows[name] = {
            "seconds": results.summary(taken),
            "speedup": results.summary([a / b for a, b in zip(off, taken, strict=True)]),
            "tokens_per_step": results.summary([a.tokens_per_step for a in answers])["median"],
        }
    return rows
