"""What it costs to go from one model to another in one server.

Where both fit, requests alternate and nothing is loaded again. Where one fits, each switch has the
other model unloaded and this one loaded; next to it stands a plain load of the same model by a
server that has nothing loaded. The two take turns, pair after pair, and every answer is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import results
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

BODY = {
    "prompt": "Once upon a time",
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "return_token_ids": True,  # most tokens of a random checkpoint have no text
}
LOADED = "is loaded after"
IDLE_SECONDS = 60.0


class Server:
    """A server of both models, none of them loaded at first.

    Args:
        folders: Of the models.
        flags: Of ``quire serve``.
    """

    def __init__(self, folders: Sequence[Path], flags: Sequence[str]) -> None:
        paths = [str(folder) for folder in folders]
        self._process = ServeProcess([*paths, "--load-on-demand", *flags])
        self._client = httpx2.Client(base_url=self._process.wait_ready(), timeout=600)

    def ask(self, model: str) -> tuple[float, list[int]]:
        """Return the seconds from a request to its first token, and the tokens of its answer."""
        tokens: list[int] = []
        first, start = 0.0, time.perf_counter()
        body = {**BODY, "model": model}
        with self._client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    first = first or time.perf_counter() - start
                    tokens += event["choices"][0].get("token_ids") or []
        assert len(tokens) == BODY["max_tokens"], tokens
        return first, tokens

    def unload(self, model: str) -> None:
        """Unload a model and wait until its memory is free."""
        self._client.post("/models/unload", json={"model": model}).raise_for_status()
        end = time.monotonic() + IDLE_SECONDS
        while self._process.engines():
            assert time.monotonic() < end, "still there"
            time.sleep(0.05)

    def num_loads(self) -> int:
        """Return how often a model was loaded."""
        return sum(LOADED in line for line in self._process.lines)

    def end(self) -> None:
        """End it."""
        self._client.close()
        assert self._process.end() == 0, self._process.stderr


def both_fit(
    folders: Sequence[Path], flags: Sequence[str], rounds: int
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return what alternating requests take, and the models' answers."""
    server = Server(folders, flags)
    answers = {folder.name: server.ask(folder.name)[1] for folder in folders}
    assert answers[folders[0].name] != answers[folders[1].name], answers
    before, seconds, lost = server.num_loads(), [], 0
    for number in range(2 * rounds):
        name = folders[number % 2].name
        first, tokens = server.ask(name)
        seconds.append(first)
        lost += tokens != answers[name]
    loads = server.num_loads() - before
    server.end()
    return {"first_token": results.summary(seconds), "loads": loads, "wrong_answers": lost}, answers


def one_fits(
    folders: Sequence[Path], flags: Sequence[str], rounds: int, answers: dict[str, list[int]]
) -> dict[str, Any]:
    """Return what a switch takes and what a plain load takes, in turns."""
    server = Server(folders, flags)
    first, second = (folder.name for folder in folders)
    plain, switch, lost = [], [], 0
    for number in track(range(rounds + 1), "one fits"):
        seconds, alone = server.ask(second)  # nothing is loaded
        _, other = server.ask(first)  # the second goes for it
        again, same = server.ask(second)  # and comes back: the same model as in the plain load
        server.unload(second)
        lost += (alone, other, same) != (answers[second], answers[first], answers[second])
        if number:  # the first reads what the page cache lacks
            plain.append(seconds)
            switch.append(again)
    loads = server.num_loads()
    server.end()
    assert loads == 3 * (rounds + 1), loads
    ratios = [a / b for a, b in zip(switch, plain, strict=True)]
    return {
        "plain_load_to_first_token": results.summary(plain),
        "switch_to_first_token": results.summary(switch),
        "ratio_of_medians": statistics.median(switch) / statistics.median(plain),
        "median_of_ratios": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "wrong_answers": lost,
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-3.2-1b", choices=list(PRESETS))
    parser.add_argument("--rounds", type=int, default=9)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of each model")
    parser.add_argument("--both", default="12GiB", help="memory in which both fit")
    parser.add_argument("--one", default="4GiB", help="memory in which one fits")
    parser.add_argument("--name", default="switching", help="of the result file; empty for none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / f"{options.model}-{letter}" for letter in "ab"]
        for seed, path in enumerate(folders):
            random_checkpoint(path, PRESETS[options.model], seed=seed, dtype="bfloat16")
        limits = ["--threads", str(options.threads), "--max-model-len", "2048"]
        limits += ["--max-num-seqs", "4"]
        both, answers = both_fit(folders, [*limits, "--memory", options.both], options.rounds)
        one = one_fits(folders, [*limits, "--memory", options.one], options.rounds, answers)
    table = Table("case", "to the first token, median s", "loads", "wrong answers")
    alternating = both["first_token"]["median"]
    wrong = [str(both["wrong_answers"]), str(one["wrong_answers"])]
    table.add_row("both fit, in turns", f"{alternating:.3f}", str(both["loads"]), wrong[0])
    for what in ("plain_load", "switch"):
        seconds = one[f"{what}_to_first_token"]["median"]
        table.add_row(f"one fits: {what.replace('_', ' ')}", f"{seconds:.3f}", "1 each", wrong[1])
    Console().print(table, f"a switch takes {one['ratio_of_medians']:.2f} of a plain load")
    if options.name:
        settings = {key: value for key, value in vars(options).items() if key != "name"}
        results.write(options.name, {"both_fit": both, "one_fits": one}, settings=settings)


if __name__ == "__main__":
    main()
