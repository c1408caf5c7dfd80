"""What proposed tokens bring when they hold at a set rate, by length and load; quality is scripted.

    scripts/bench speculation MODEL [--rates 0,0.8] [--loads 1,4,16]

Each request's answer is known from a run before, and each token proposed is the right one with the
given probability (:mod:`benchmarks.scripted_proposer`), so that nothing is measured but what
checking costs and what the controller makes of it. ``K`` is a fixed length, ``auto`` the
controller's choice up to 8; ``T`` is a tree of that many tokens, ``T auto`` one of as many as the
controller chooses, up to 16. Every answer is compared with the plain one. The rounds go through all
lengths in turn; ratios are of the same round.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import results
from benchmarks.scripted_proposer import use_script
from benchmarks.speculated import Answered, answer, compared
from quire import LLM, SamplingParams
from quire.core.machine import read_machine

LENGTHS = (1, 2, 4, 6, 8)
TREES = {
    5: {"tree_width": 2, "tree_depth": 4},
    16: {"tree_width": 3, "tree_depth": 6},
}
PROMPT_TOKENS = 64


class Load:
    """A number of requests that run together, and what they are answered without proposals."""

    def __init__(self, llm: LLM, num_requests: int, num_tokens: int) -> None:
        draw = random.Random(num_requests)
        vocab_size = llm.engine.model_config.vocab_size
        self._llm = llm
        self._prompts = [
            [draw.randrange(5, vocab_size) for _ in range(PROMPT_TOKENS)]
            for _ in range(num_requests)
        ]
        self._params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        self.answers = self.run().tokens
        self.script = [p + a for p, a in zip(self._prompts, self.answers, strict=True)]

    def run(self) -> Answered:
        """Answer all of them."""
        return answer(
            self._llm, lambda llm: llm.generate(self._prompts, self._params, use_tqdm=False)
        )


def measure(llm: LLM, load: Load, rate: float, rounds: int) -> dict[str, Any]:
    """Return for each length the ratio to no proposals, by round, and the tokens a step."""
    choices: dict[str, dict[str, Any] | None] = {"off": None}
    choices |= {f"K={k}": {"num_speculative_tokens": k, "adaptive": False} for k in LENGTHS}
    choices["auto"] = {"num_speculative_tokens": max(LENGTHS)}
    trees = {size: {"num_speculative_tokens": size, **form} for size, form in TREES.items()}
    choices |= {f"T={size}": {**tree, "adaptive": False} for size, tree in trees.items()}
    choices["T auto"] = trees[max(TREES)]
    found: dict[str, list[Answered]] = {name: [] for name in choices}
    for number in range(rounds):
        for name, settings in choices.items():
            use_nothing(llm)
            if settings is not None:
                use_script(llm.engine, load.script, rate, seed=number, **settings)
            found[name].append(load.run())
            same = found[name][-1].tokens == load.answers
            assert same, f"other tokens with {name} at rate {rate}"
    return compared(found)


def use_nothing(llm: LLM) -> None:
    """Have nothing proposed."""
    llm.engine.engine.scheduler.lookahead = None
    runner = llm.engine.executor.runner
    assert runner is not None
    runner.end_speculation()


def summary(found: dict[str, Any]) -> Table:
    """Return the ratios to no proposals, a column for each load and rate."""
    table = Table("ratio to none")
    columns: list[list[str]] = []
    for num_requests, by_rate in found.items():
        for rate, rows in by_rate.items():
            table.add_column(f"{num_requests} at {rate}", justify="right")
            ratios = {name: row["speedup"]["median"] for name, row in rows.items()}
            best = max(ratio for name, ratio in ratios.items() if name[:2] in ("of", "K="))
            ratios |= {f"{name} / best K": ratios[name] / best for name in ("auto", "T auto")}
            columns.append([f"{ratio:.2f}" for ratio in ratios.values()])
    for name, *values in zip(ratios, *columns, strict=True):
        table.add_row(name, *values)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="checkpoint or name")
    parser.add_argument("--rates", default="0,0.5,0.8,0.95")
    parser.add_argument("--loads", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    arguments = parser.parse_args()
    rates = [float(rate) for rate in arguments.rates.split(",")]
    loads = [int(load) for load in arguments.loads.split(",")]
    found: dict[str, Any] = {}
    with (
        LLM(arguments.model, threads=arguments.threads, max_model_len=1024) as llm,
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("loads", total=len(loads) * len(rates))
        for num_requests in loads:
            load = Load(llm, num_requests, arguments.tokens)
            for rate in rates:
                rows = measure(llm, load, rate, arguments.rounds)
                found.setdefault(str(num_requests), {})[str(rate)] = rows
                bar.advance(task)
    Console().print(summary(found))
    model = Path(arguments.model).stem
    name = results.per_processor(f"speculation_{model}")
    print(results.write(name, found, model=model, threads=arguments.threads))
    for num_requests, by_rate in found.items():
        plain = median([rows["off"]["seconds"]["median"] for rows in by_rate.values()])
        total = arguments.tokens * int(num_requests)
        print(f"{num_requests} requests without proposals: {total / plain:.0f} tokens a second")


if __name__ == "__main__":
    main()
