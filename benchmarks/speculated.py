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
    engines: Mapping[str, LLM], ask_in: Callable[[int], Ask], rounds: int, learning: int = 0
) -> dict[str, Any]:
    """Have engines answer the same, round after round; the first is left out.

    Args:
        engines: ``off`` among them. Another one begins each round.
        ask_in: Returns what is asked in a round.
        rounds: Besides the first and those of ``learning``.
        learning: Rounds in which an engine learns what pays; they count apart.

    Returns:
        As :func:`compared`; with ``learning`` also ``speedup_learning``, that of these rounds.
    """
    found: dict[str, list[Answered]] = {name: [] for name in engines}
    names = list(engines)
    for number in range(1 + learning + rounds):
        ask = ask_in(number)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(answer(engines[name], ask))
        for name, answers in found.items():
            same = answers[-1].tokens == found[OFF][-1].tokens
            assert same, f"other tokens with {name} in round {number}"
    rows = compared({name: answers[1 + learning :] for name, answers in found.items()})
    if learning:
        first = compared({name: answers[1 : 1 + learning] for name, answers in found.items()})
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
