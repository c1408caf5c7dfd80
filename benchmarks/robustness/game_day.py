"""``scripts/game_day``: a KV cache too small for its load, on purpose, and what helps.

Each case floods a ``quire serve`` of quire-tiny of its own with real clients. Judged are counts and
not times: refusals, preemptions, recomputed tokens, prefix hits, blocks in use, alerts. Times are
reported with them. *Useful* is the share of computed tokens that had not been computed before and
lost by preemption.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.robustness import flood
from benchmarks.robustness.flood import Shape
from tools.serve_process import ServeProcess


def tight_server(num_blocks: int) -> Sequence[str]:
    """Return the flags of a server with that many blocks of 16 tokens, one of them the null block.

    They are quire-tiny's, in bfloat16.
    """
    pool = str(num_blocks * 16 * 3072)
    return (
        *("--memory", "256MiB", "--kv-cache-memory-bytes", pool, "--threads", "1"),
        "--disable-uvicorn-access-log",
    )


NUM_BLOCKS = 160
SERVER = tight_server(NUM_BLOCKS)
SEQS = "--max-num-seqs"
Outcome = dict[str, Any]
Outcomes = Mapping[str, Outcome]
#: What must hold of a scenario's outcomes by case, as text.
Rule = tuple[str, Callable[[Outcomes], bool]]


@dataclass(frozen=True)
class Scenario:
    """The same flood against servers that differ in one flag.

    Attributes:
        cases: Further flags of each server, by what the table calls it.
        shapes: Whose requests are sent in turn, one of each.
        warm: Send one request of the first shape before the flood.
        rules: Judged.
    """

    cases: Mapping[str, Sequence[str]]
    shapes: Sequence[Shape]
    rules: Sequence[Rule]
    warm: bool = False

    def bodies(self) -> list[dict[str, Any]]:
        """Return the flood's requests."""
        kinds = [shape.bodies() for shape in self.shapes]
        return [body for group in zip(*kinds, strict=True) for body in group]


def is_short(outcome: Outcome, max_num_seqs: int) -> bool:
    """Others waited although sequences were free: the blocks would not have lasted."""
    return outcome["peak_running"] < max_num_seqs and outcome["peak_waiting"] > 0


def restored(outcome: Outcome, max_num_seqs: int) -> bool:
    """As many ran as may, nothing was computed twice, and the pool's alert stayed silent."""
    return (
        outcome["peak_running"] == max_num_seqs
        and outcome["recomputed_tokens"] == 0
        and not {"QuireCacheFull", "QuirePreempts"} & set(outcome["alerts"])
    )


def _useful(seen: Outcomes) -> bool:
    return all(outcome["useful_share"] >= 0.95 for outcome in seen.values())


_USEFUL: Rule = ("at most 5% is computed twice", _useful)


def _remedy(
    flags: Mapping[str, Sequence[str]], shapes: Sequence[Shape], *rules: Rule, warm: bool = False
) -> Scenario:
    before, after = flags
    num_before, num_after = (int(case[case.index(SEQS) + 1]) for case in flags.values())
    common: list[Rule] = [
        _USEFUL,
        (
            f"{before}: fewer run than may, for want of blocks",
            lambda seen: is_short(seen[before], num_before),
        ),
        (
            f"{after}: as many run as may, nothing computed twice, no alert",
            lambda seen: restored(seen[after], num_after),
        ),
    ]
    return Scenario(flags, shapes, [*common, *rules], warm)


def _all_served(seen: Outcomes) -> bool:
    return all(set(outcome["statuses"]) == {"200"} for outcome in seen.values())


_SERVED: Rule = ("every request is served", _all_served)


def even(number: int, num_blocks: int = NUM_BLOCKS) -> Shape:
    """Requests of a fifth of the blocks: 4 fit, 8 do not, and 8 do in 8 bits."""
    size = num_blocks // 5
    return Shape(number, num_own=size * 16 * 9 // 32, num_output=size * 16 * 23 // 32)


def fewer_sequences(number: int, num_blocks: int = NUM_BLOCKS) -> Scenario:
    """As many at once as fit."""
    return _remedy(
        {"8 sequences": (SEQS, "8"), "4 sequences": (SEQS, "4")},
        [even(number, num_blocks)],
        _SERVED,
    )


def exhaustion(number: int, most_waiting: int = 24) -> Scenario:
    """A flood of long prompts on a server that lets few wait; more than 31 must be refused."""
    bounded = f"8 sequences, {most_waiting} may wait"

    def answered(seen: Outcomes) -> bool:
        statuses = seen[bounded]["statuses"]
        return set(statuses) == {"200", "429"} and sum(statuses.values()) == number

    # Prompts in one step each: one computed in parts may take as many steps as the other request
    # has, which ends before both are whole.
    flags = (SEQS, "8", "--max-num-queued-reqs", str(most_waiting), "--no-enable-chunked-prefill")
    return Scenario(
        {bounded: flags},
        # 76 to 79 blocks: 2 fit, and are 95% of the pool from their first token to their last.
        [Shape(number, num_own=75 * 16 + 1, num_output=63)],
        [
            _USEFUL,
            (
                "full, and its alert true",
                lambda seen: "QuireCacheFull" in seen[bounded]["alerts"],
            ),
            ("others wait", lambda seen: seen[bounded]["peak_waiting"] > 0),
            ("every request gets an answer or 429 with Retry-After", answered),
            ("QuireRefuses is true", lambda seen: "QuireRefuses" in seen[bounded]["alerts"]),
        ],
    )


def thrashing(number: int, widths: Sequence[int], num_blocks: int = NUM_BLOCKS) -> Scenario:
    """Requests that start small and grow; of ``widths`` the first lets no more run than fit."""
    size = num_blocks // 5
    fits, *wider = (f"{width} sequences" for width in widths)
    return Scenario(
        {f"{width} sequences": (SEQS, str(width)) for width in widths},
        # It begins with 2 blocks of 32, or 1 of 16: 4 fit.
        [Shape(number, num_own=size, num_output=size * 15)],
        [
            _SERVED,
            _USEFUL,
            ("QuirePreempts stays silent", _quiet),
            (
                "too many may run: as many run as fit",
                # Some steps have fewer rows.
                lambda seen: all(seen[w]["steps"] <= 1.02 * seen[fits]["steps"] for w in wider),
            ),
        ],
    )


def _quiet(seen: Outcomes) -> bool:
    return not any("QuirePreempts" in outcome["alerts"] for outcome in seen.values())


SCENARIOS: dict[str, Scenario] = {
    "exhaustion": exhaustion(96),
    "fewer sequences": fewer_sequences(24),
    "shorter contexts": _remedy(
        {"2048 tokens": (SEQS, "8"), "256 tokens": (SEQS, "8", "--max-model-len", "256")},
        # 16 and 64 blocks, in turn.
        [Shape(12, num_own=144, num_output=112), Shape(12, num_own=512, num_output=512)],
        (
            "what is too long is refused at the edge, the rest served",
            lambda seen: seen["256 tokens"]["statuses"] == {"200": 12, "400": 12},
        ),
    ),
    "8-bit KV": _remedy(
        {"bfloat16": (SEQS, "8"), "int8": (SEQS, "8", "--kv-cache-dtype", "int8")},
        [even(24)],
        _SERVED,
    ),
    "prefix caching": _remedy(
        {"off": (SEQS, "8", "--no-enable-prefix-caching"), "on": (SEQS, "8")},
        # 16 blocks in common and 16 of its own.
        [Shape(24, num_own=16, num_output=240, num_shared=256)],
        _SERVED,
        (
            "every request finds the common prefix",
            lambda seen: seen["on"]["prefix_hit_tokens"] == 24 * 256,
        ),
        warm=True,
    ),
    "thrashing": thrashing(32, (4, 8, 16, 32)),
}


def run(
    scenario: Scenario,
    server: Sequence[str] = SERVER,
    start: Callable[[Sequence[str]], ServeProcess] = ServeProcess,
) -> tuple[dict[str, Outcome], list[str]]:
    """Run every case of a scenario; return their outcomes and, as text, what was not as stated."""
    outcomes: dict[str, Outcome] = {}
    wrong = []
    for name, flags in scenario.cases.items():
        with start([*server, *flags]) as process:
            url = process.wait_ready()
            engine, bodies = process.engine(), scenario.bodies()
            if scenario.warm:
                flood.send(url, bodies[:1], engine)
            begin = sum(engine.cpu_times()[:2])
            outcome = flood.send(url, bodies, engine)
            while not outcome["wrong"] and outcome["early_looks"] < 2:
                outcome = flood.send(url, bodies, engine)  # the machine let no looks fall into it
            cpu_seconds = sum(engine.cpu_times()[:2]) - begin
            per_second = outcome["generated_tokens"] / max(cpu_seconds, 0.01)
            outcome["tokens_an_engine_cpu_second"] = round(per_second, 1)
            outcome["exit_code"] = process.end()
        outcomes[name] = outcome
        wrong += [f"{name}: {text}" for text in outcome["wrong"]]
        if outcome["alerts_at_rest"]:
            wrong.append(f"{name}: alerts at rest: {outcome['alerts_at_rest']}")
        if outcome["exit_code"]:
            wrong.append(f"{name}: exit code {outcome['exit_code']}")
    return outcomes, wrong + [text for text, holds in scenario.rules if not holds(outcomes)]


_COLUMNS = {
    "answers": lambda o: ", ".join(f"{n} x {status}" for status, n in o["statuses"].items()),
    "KV peak": lambda o: f"{o['peak_kv_usage']:.0%}",
    "running": lambda o: f"{o['peak_running']:g}",
    "preempted": lambda o: f"{o['preemptions']:g}",
    "recomputed": lambda o: f"{o['recomputed_tokens']:g}",
    "useful": lambda o: f"{o['useful_share']:.1%}",
    "prefix hits": lambda o: f"{o['prefix_hit_tokens']:g}",
    "alerts": lambda o: ", ".join(name.removeprefix("Quire") for name in o["alerts"]) or "none",
    "tokens/s": lambda o: f"{o['tokens_a_second']:.0f}",
    "tokens/CPU s": lambda o: f"{o['tokens_an_engine_cpu_second']:.0f}",
    "TTFT p50": lambda o: f"{o['ttft_p50_seconds']:.2f} s",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SCENARIOS, help="one scenario; writes no result file")
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    table = Table("scenario", "case", *_COLUMNS)
    document, all_wrong = {}, []
    for name in [arguments.only] if arguments.only else SCENARIOS:
        scenario = SCENARIOS[name]
        outcomes, wrong = run(scenario)
        all_wrong += [f"{name}: {text}" for text in wrong]
        for case, outcome in outcomes.items():
            table.add_row(name, case, *(show(outcome) for show in _COLUMNS.values()))
        table.add_section()
        document[name] = {
            "flags": {case: " ".join(flags) for case, flags in scenario.cases.items()},
            "judged": [text for text, _ in scenario.rules],
            "wrong": wrong,
            "cases": outcomes,
        }
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    print("\n".join(all_wrong) or "everything as stated")
    if not (arguments.no_result or arguments.only):
        print(f"written: {results.write('game_day', document, server=' '.join(SERVER)).name}")
    sys.exit(1 if all_wrong else 0)


if __name__ == "__main__":
    main()
