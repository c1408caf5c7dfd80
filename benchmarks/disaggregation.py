"""What long prompts do to the streams of others: with them in one engine, and computed apart.

    scripts/bench disaggregation

Eight streams make tokens while prompts of 4,096 tokens come, each when the one before has its first
token. Stated are the gaps between two tokens of the streams in that time, pooled, the first tokens
of the prompts, and what moving their blocks took. ``mixed``: one engine on all cores, whose steps
take a prompt whole. ``limited``: the same with the parts that it makes by default. ``apart``:
``--disaggregate 1p1d``, an engine for prompts and one for outputs, which divide the cores; ``tcp``:
the same with ``--disaggregate-transport tcp``. All tokens must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from quire import SamplingParams
from quire.core.engine_request import EngineRequest
from quire.core.metrics import add_up
from quire.llm.engine_client import EngineClient
from quire.llm.load_state import Loading
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.load_replicas import load_replicas
from quire.llm.replicas.roles import Roles
from quire.settings.config import EngineConfig
from quire.system.machine import read_machine
from tools.random_checkpoint import PRESETS, random_checkpoint

NUM_STREAMS, NUM_PROMPTS, NUM_TOKENS = 8, 3, 4096
#: Of the model: 33 million parameters.
SHAPE = {
    **PRESETS["tiny-llama"],
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1536,
    "max_position_embeddings": 16384,
}
CASES: dict[str, dict[str, Any]] = {
    "mixed": {"mixed_prefill_tokens": 0, "max_num_batched_tokens": 8192},
    "limited": {},
    "apart": {},
    "tcp": {},
}


def load(case: str, folder: Path) -> EngineClient:
    """Return an engine that serves."""
    keywords = {"model": str(folder), "memory": 2**31, **CASES[case]}
    if case not in ("apart", "tcp"):
        return EngineProxy(EngineConfig.from_keywords(**keywords))
    config = EngineConfig.from_keywords(**keywords, data_parallel_size=2)

    def load_one(number: int, own: EngineConfig, loading: Loading) -> EngineProxy:
        return EngineProxy(own, loading=loading)

    roles = Roles(1, 512, transport="tcp" if case == "tcp" else "auto")
    return load_replicas(config, read_machine(), Loading(), load_one, roles)


def ask(engine: EngineClient, name: str, prompt: list[int], num_tokens: int) -> Any:
    """Return the outputs of a request as they come."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return aclosing(engine.generate(EngineRequest(name, prompt, params)))


class Load:
    """The streams and the prompts, on one engine.

    Attributes:
        gaps: Of the streams while prompts were computed, in seconds.
        first_tokens: Of the prompts, in seconds.
        answers: Tokens by request.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._counts_gaps = False
        self._round = 0
        self.gaps: list[float] = []
        self.first_tokens: list[float] = []
        self.answers: dict[str, list[int]] = {}

    async def run(self, round_number: int) -> None:
        """Serve it once."""
        self._round = round_number
        draw = random.Random(round_number)
        prompts = [[draw.randrange(250) for _ in range(NUM_TOKENS)] for _ in range(NUM_PROMPTS)]
        begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        streams = [
            asyncio.create_task(self._stream(f"stream {i}", [i + 1] * 20, event))
            for i, event in enumerate(begun)
        ]
        for event in begun:
            await event.wait()
        self._counts_gaps = True
        for number, prompt in enumerate(prompts):
            start, name = time.monotonic(), f"prompt {number}"
            async with ask(self._engine, f"{self._round} {name}", prompt, 8) as outputs:
                seen = False
                async for output in outputs:
                    if not seen:
                        self.first_tokens.append(time.monotonic() - start)
                        seen = True
                    self.answers[name] = list(output.outputs[0].token_ids)
        self._counts_gaps = False
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def _stream(self, name: str, prompt: list[int], begun: asyncio.Event) -> None:
        async with ask(self._engine, f"{self._round} {name}", prompt, 8000) as outputs:
            last, count = time.monotonic(), 0
            async for output in outputs:
                self.answers[name] = list(output.outputs[0].token_ids[:32])
                new, now = len(output.outputs[0].token_ids) - count, time.monotonic()
                count += new
                if self._counts_gaps:
                    self.gaps += [now - last, *[0.0] * (new - 1)]
                last = now
                begun.set()


def percentile(values: list[float], part: float) -> float:
    """Return a percentile."""
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def are_equal(one: list[dict[str, list[int]]], two: list[dict[str, list[int]]]) -> bool:
    """Return whether answers are the same as far as both go: streams are cut somewhere."""
    return all(
        ours.keys() == theirs.keys()
        and all(a == b for name in ours for a, b in zip(ours[name], theirs[name], strict=False))
        for ours, theirs in zip(one, two, strict=True)
    )


async def measure(case: str, folder: Path, rounds: int) -> tuple[dict[str, Any], list[Any]]:
    """Return what a case came to, and all answers by round."""
    engine = await asyncio.to_thread(load, case, folder)
    found: dict[str, list[float]] = {}
    answers = []
    try:
        await Load(engine).run(
            rounds
        )  # what is measured of prompts decides where they are computed
        for number in range(rounds):
            one = Load(engine)
            await one.run(number)
            answers.append(one.answers)
            for name, part in (("itl_p50", 0.5), ("itl_p99", 0.99), ("itl_max", 1.0)):
                found.setdefault(name, []).append(percentile(one.gaps, part))
            found.setdefault("prompt_ttft", []).append(percentile(one.first_tokens, 0.5))
            found.setdefault("tokens_per_second", []).append(
                len(one.gaps) / sum(one.first_tokens) if one.first_tokens else 0.0
            )
        stats = engine.stats()
    finally:
        await engine.shutdown()
    told: dict[str, Any] = {name: results.summary(values) for name, values in found.items()}
    seconds = add_up(stats, "kv_offload_store_time", tier="transfer")
    sent = add_up(stats, "kv_offload_store_bytes", tier="transfer")
    if seconds:
        told["sent_bytes"], told["sent_bytes_per_second"] = sent, sent / seconds
        told["prompts_apart"] = add_up(stats, "prefill_requests", place="apart")
    return told, answers


def main() -> None:
    """Measure, compare tokens, show and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="disaggregation")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        random_checkpoint(path, SHAPE)
        found, expected = {}, None
        for case in CASES:
            found[case], answers = asyncio.run(measure(case, path, arguments.rounds))
            expected = expected or answers
            assert are_equal(answers, expected), f"tokens of {case} differ"
    shown = Table("case", "ITL p50", "p99", "greatest", "first token of a prompt", "tokens/s")
    for case, values in found.items():
        columns = ("itl_p50", "itl_p99", "itl_max", "prompt_ttft")
        shown.add_row(
            case,
            *(f"{values[name]['median'] * 1000:.1f} ms" for name in columns),
            f"{values['tokens_per_second']['median']:.0f}",
        )
    Console().print(shown)
    ratio = found["mixed"]["itl_p99"]["median"] / found["apart"]["itl_p99"]["median"]
    print(f"p99 of the gaps: {ratio:.1f} times lower apart than mixed; all tokens are equal")
    written = results.write(arguments.name, found, itl_p99_ratio=ratio, tokens_equal=True)
    print(f"written: {written.name}")


if __name__ == "__main__":
    main()
