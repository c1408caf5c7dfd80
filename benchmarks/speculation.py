"""What proposed tokens bring when they hold at a set rate, by length and load; quality is scripted.

    scripts/bench speculation MODEL [--rates 0,0.8] [--loads 1,4,16,64,mixed] [--no-trees]

Each request's answer is known from a run before, and each token proposed is the right one with the
given probability (:mod:`benchmarks.scripted_proposer`), so that nothing is measured but what
checking costs and what the controller makes of it. ``K`` is a fixed length, ``auto`` the
controller's choice up to 8; ``T`` is a tree of that many tokens, ``T auto`` one of as many as the
controller chooses, up to 16. A load is that many answers of one length; ``mixed`` are answers of
up to four times that length, so that 16 run at first and 1 in the end. Every answer is compared
with the plain one. The rounds go through all lengths in turn, the first is left out; ratios are of
the same round. The controller goes on from round to round, as a server's does.
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
from quire.speculative.pace.controller import Controller
from quire.system.machine import read_machine

LENGTHS = (1, 2, 4, 6, 8)
TREES = {
    5: {"tree_width": 2, "tree_depth": 4},
    16: {"tree_width": 3, "tree_depth": 6},
}
PROMPT_TOKENS = 64
MIXED_REQUESTS = 16


class Load:
    """A number of requests that run together, and what they are answered without proposals."""

    def __init__(self, llm: LLM, name: str, num_tokens: int) -> None:
        count = MIXED_REQUESTS if name == "mixed" else int(name)
        draw = random.Random(count)
        vocab_size = llm.engine.model_config.vocab_size
        self._llm = llm
        self._prompts = [
            [draw.randrange(5, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(count)
        ]
        lengths = [num_tokens] * count
        if name == "mixed":
            lengths = [max(num_tokens * (i + 1) // (count // 4), 1) for i in range(count)]
        self._params = [
            SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
            for length in lengths
        ]
        self.num_tokens = sum(lengths)
        self.answers = self.run().tokens
        self.script = [p + a for p, a in zip(self._prompts, self.answers, strict=True)]

    def run(self) -> Answered:
        """Answer all of them."""
        return answer(
            self._llm, lambda llm: llm.generate(self._prompts, self._params, use_tqdm=False)
        )


def create_choices(lengths: list[int], *, trees: bool) -> dict[str, dict[str, Any] | None]:
    """Return the settings of speculation by name; ``off`` has none."""
    choices: dict[str, dict[str, Any] | None] = {"off": None}
    choices |= {f"K={k}": {"num_speculative_tokens": k, "adaptive": False} for k in lengths}
    choices["auto"] = {"num_speculative_tokens": max(lengths)}
    if trees:
        forms = {size: {"num_speculative_tokens": size, **form} for size, form in TREES.items()}
        choices |= {f"T={size}": {**form, "adaptive": False} for size, form in forms.items()}
        choices["T auto"] = forms[max(TREES)]
    return choices


def measure(
    llm: LLM, load: Load, rate: float, rounds: int, choices: dict[str, dict[str, Any] | None]
) -> dict[str, Any]:
    """Return for each choice the ratio to no proposals, by round, and the tokens a step."""
    found: dict[str, list[Answered]] = {name: [] for name in choices}
    controllers: dict[str, Controller] = {}
    for number in range(rounds + 1):
        for name, settings in choices.items():
            use_nothing(llm)
            if settings is not None:
                controllers[name] = use_script(
                    llm.engine,
                    load.script,
                    rate,
                    seed=number,
                    controller=controllers.get(name),
                    **settings,
                )
            found[name].append(load.run())
            same = found[name][-1].tokens == load.answers
            assert same, f"other tokens with {name} at rate {rate}"
    return compared({name: answers[1:] for name, answers in found.items()})


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
            own = [name for name in ("auto", "T auto") if name in ratios]
            ratios |= {f"{name} / best K": ratios[name] / best for name in own}
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
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="fixed ones")
    parser.add_argument("--no-trees", action="store_true")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    arguments = parser.parse_args()
    rates = [float(rate) for rate in arguments.rates.split(",")]
    loads = arguments.loads.split(",")
    lengths = [int(length) for length in arguments.lengths.split(",")]
    choices = create_choices(lengths, trees=not arguments.no_trees)
    total = {}
    found: dict[str, Any] = {}
    with (
        LLM(
            arguments.model,
            threads=arguments.threads,
            max_model_len=1024,
            max_num_seqs=arguments.max_num_seqs,
        ) as llm,
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("loads", total=len(loads) * len(rates))
        for name in loads:
            load = Load(llm, name, arguments.tokens)
            total[name] = load.num_tokens
            for rate in rates:
                rows = measure(llm, load, rate, arguments.rounds, choices)
                found.setdefault(name, {})[str(rate)] = rows
                bar.advance(task)
    Console().print(summary(found))
    model = Path(arguments.model).stem
    name = results.per_processor(f"speculation_{model}")
    print(results.write(name, found, model=model, threads=arguments.threads))
    for load_name, by_rate in found.items():
        plain = median([rows["off"]["seconds"]["median"] for rows in by_rate.values()])
        print(f"load {load_name} without proposals: {total[load_name] / plain:.0f} tokens a second")


if __name__ == "__main__":
    main()
