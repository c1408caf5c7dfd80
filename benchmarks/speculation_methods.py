"""What quire-tiny's own heads and n-gram bring by load: none, fixed lengths, the controller's.

    scripts/bench speculation_methods [--methods eagle3,medusa,ngram] [--loads 1,4,16,64,mixed]

A load is that many answers begun together; ``mixed`` are short and long ones, greedy and
sampled, of which 16 run at a time, so that the load falls to 1 in the end. Every round asks
something new, since n-gram looks up earlier answers, and every answer is compared with the plain
one. The rounds go through all lengths in turn; ratios are of the same round, the first is left out.
A round is a tenth of a second: those in which an engine learns what pays at a load count apart.
"""

from __future__ import annotations

import argparse
import random
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import results
from benchmarks.speculated import Ask, take_turns
from quire import LLM, SamplingParams
from quire.system.machine import read_machine

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

    def ask_in(number: int) -> Ask:
        requests = make_requests(load, number, num_tokens)
        return lambda llm: llm.chat(*requests, use_tqdm=False)

    with ExitStack() as stack:
        return take_turns(create(method, load, threads, stack), ask_in, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default="eagle3,medusa,ngram")
    parser.add_argument("--loads", default="1,4,16,64,mixed")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    arguments = parser.parse_args()
    methods, loads = arguments.methods.split(","), arguments.loads.split(",")
    found: dict[str, Any] = {}
    columns = (*(f"K={k}" for k in LENGTHS), "auto", "auto / best", "auto, learning")
    table = Table("method", "requests", *columns)
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
                learning = rows["auto"]["speedup_learning"]["median"]
                shown += [f"{ratios['auto'] / best:.2f}", f"{learning:.2f}"]
                table.add_row(method, load, *shown)
                bar.advance(task)
    Console().print(table)
    name = results.per_processor("speculation_methods")
    print(results.write(name, found, model=MODEL, threads=arguments.threads))


if __name__ == "__main__":
    main()
