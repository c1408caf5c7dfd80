"""What quire-tiny's own heads and n-gram bring by load: none, fixed lengths, the controller's.

    scripts/bench speculation_methods [--methods eagle3,medusa,ngram] [--loads 1,4,16,64,mixed]

A load is that many answers begun together; ``mixed`` are short and long ones, greedy and
sampled, of which 16 run at a time, so that the load falls to 1 in the end. Every round asks
something new, since n-gram looks up earlier answers, and every answer is compared with the plain
one. The rounds go through all lengths in turn; ratios are of the same round, the first is left out.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import results
from quire import LLM, SamplingParams
from quire.core.machine import read_machine

MODEL = "quire-tiny"
LENGTHS = (1, 2, 4)
MIXED_REQUESTS, MIXED_RUNNING = 32, 16
#: What the model answers at some length.
ASKED = ("Tell me a story about", "Tell me a short story about", "Write a story about")
THINGS = (
    "a fox", "a boat", "the sea", "a lamp", "two friends", "a garden", "the moon", "a king",
    "a train", "winter", "bread", "a river", "a school", "music", "a clock", "the wind",
)  # fmt: skip

Requests = tuple[list[Any], list[SamplingParams]]


def make_requests(load: str, number: int, num_tokens: int) -> Requests:
    """Return chats and their settings; those of each ``number`` are others."""
    draw = random.Random(f"{load} {number}")
    count = MIXED_REQUESTS if load == "mixed" else int(load)
    chats: list[Any] = []
    params: list[SamplingParams] = []
    for index in range(count):
        things = " and ".join(draw.sample(THINGS, 2))
        chats.append([{"role": "user", "content": f"{draw.choice(ASKED)} {things}."}])
        sampled = load == "mixed" and index % 2 == 1
        most = draw.choice((num_tokens // 4, num_tokens)) if load == "mixed" else num_tokens
        params.append(
            SamplingParams(temperature=0.8 if sampled else 0.0, seed=index, max_tokens=most)
        )
    return chats, params


def run(llm: LLM, requests: Requests) -> tuple[list[list[int]], float, float]:
    """Return the answers, the seconds they took, and the steps."""
    before = llm.engine.stats()["num_steps"]
    start = time.perf_counter()
    outputs = llm.chat(*requests, use_tqdm=False)
    seconds = time.perf_counter() - start
    steps = llm.engine.stats()["num_steps"]
    assert isinstance(before, float | int) and isinstance(steps, float | int)
    return [list(output.outputs[0].token_ids) for output in outputs], seconds, steps - before


def create(method: str, load: str, threads: int, stack: ExitStack) -> dict[str, LLM]:
    """Return an engine for each choice, which take turns; the stack ends them."""
    choices: dict[str, dict[str, Any] | None] = {"off": None}
    choices |= {f"K={k}": {"num_speculative_tokens": k, "adaptive": False} for k in LENGTHS}
    choices["auto"] = {"num_speculative_tokens": max(LENGTHS)}
    running = {"max_num_seqs": MIXED_RUNNING} if load == "mixed" else {}
    return {
        name: stack.enter_context(
            LLM(
                MODEL,
                threads=threads,
                max_model_len=512,
                speculative_config=None if own is None else {"method": method, **own},
                **running,
            )
        )
        for name, own in choices.items()
    }


def measure(
    method: str, load: str, *, num_tokens: int, rounds: int, threads: int
) -> dict[str, Any]:
    """Return for each choice the ratio to no proposals, by round, and the tokens a step."""
    with ExitStack() as stack:
        engines = create(method, load, threads, stack)
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        tokens_per_step: dict[str, float] = {}
        names = list(engines)
        for number in range(rounds + 1):
            requests = make_requests(load, number, num_tokens)
            answers: dict[str, list[list[int]]] = {}
            for name in names[number % len(names) :] + names[: number % len(names)]:
                answers[name], taken, steps = run(engines[name], requests)
                if number:
                    seconds[name].append(taken)
                tokens_per_step[name] = round(sum(map(len, answers[name])) / steps, 2)
            for name, found in answers.items():
                assert found == answers["off"], f"other tokens with {method} {name} at load {load}"
    return {
        name: {
            "seconds": results.summary(taken),
            "speedup": results.summary([a / b for a, b in zip(seconds["off"], taken, strict=True)]),
            "tokens_per_step": tokens_per_step[name],
        }
        for name, taken in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default="eagle3,medusa,ngram")
    parser.add_argument("--loads", default="1,4,16,64,mixed")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    arguments = parser.parse_args()
    methods, loads = arguments.methods.split(","), arguments.loads.split(",")
    found: dict[str, Any] = {}
    table = Table("method", "requests", *(f"K={k}" for k in LENGTHS), "auto", "auto / best")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loads", total=len(methods) * len(loads))
        for method in methods:
            for load in loads:
                rows = measure(
                    method,
                    load,
                    num_tokens=arguments.tokens,
                    rounds=arguments.rounds,
                    threads=arguments.threads,
                )
                found.setdefault(method, {})[load] = rows
                ratios = {name: row["speedup"]["median"] for name, row in rows.items()}
                best = max(value for name, value in ratios.items() if name != "auto")
                shown = [f"{ratios[name]:.2f}" for name in rows if name != "off"]
                table.add_row(method, load, *shown, f"{ratios['auto'] / best:.2f}")
                bar.advance(task)
    Console().print(table)
    name = results.per_processor("speculation_methods")
    print(results.write(name, found, model=MODEL, threads=arguments.threads))


if __name__ == "__main__":
    main()
