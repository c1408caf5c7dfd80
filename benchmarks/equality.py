"""The equality lattice: the same requests under every condition must give the same bits.

Conditions are {alone, batched} x {whole, chunked} x {cold, warm prefix} x {preempted, not} x
{streamed, not} x {1, 2 threads} x {proposals in a chain, in trees, none}. Compared are token ids,
texts, endings, log-probabilities with their alternatives, and prompt log-probabilities. A condition
that did not happen (nothing was preempted, no prefix was found ...) is a failure too.

``scripts/bench equality [MODEL ...]`` prints the table; the integration tests call
:func:`check_lattice`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.lattice_requests import BLOCK_SIZE, requests, token_ids_of
from benchmarks.scripted_proposer import use_script
from quire import LLM, AsyncLLM, LoRARequest, SamplingParams
from quire.core.model.model_config import ModelConfig
from quire.core.outputs import RequestOutput
from quire.llm.engine_client import Prompt
from quire.llm.text_engine import TextEngine
from quire.models.config.config_reader import read_model_config

NUM_PROPOSED = 4
ACCEPTED = 'spec_decode_num_accepted_tokens{method="medusa"}'

#: Everything of a request's output that must not depend on the condition.
Result = tuple[Any, ...]


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """How the requests are run; all False is the baseline."""

    batched: bool = False
    chunked: bool = False
    warm: bool = False
    preempted: bool = False
    streamed: bool = False
    two_threads: bool = False
    speculative: bool = False
    trees: bool = False

    @property
    def name(self) -> str:
        """The conditions that differ from the baseline."""
        return " + ".join(f.name for f in fields(self) if getattr(self, f.name)) or "baseline"

    @property
    def code(self) -> str:
        """One letter for each condition in turn, a dot where it is off."""
        return "".join(f.name[0].upper() if getattr(self, f.name) else "·" for f in fields(self))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one condition.

    Attributes:
        condition: How it was run.
        failures: What differs from the baseline, or did not happen; empty is a pass.
    """

    condition: Condition
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Results of the requests in order, and the engine's counters from then."""

    results: list[Result]
    stats: dict[str, float]
    num_cached_tokens: int


def all_conditions() -> list[Condition]:
    """Return the whole lattice; a request alone is preempted for no other.

    Proposals are a chain (``speculative``) or a tree (``trees``).
    """
    axes = itertools.product((False, True), repeat=len(fields(Condition)))
    lattice = (Condition(*values) for values in axes)
    lattice = (c for c in lattice if not (c.speculative and c.trees))
    return [c for c in lattice if c.batched or not c.preempted]


def few_conditions() -> list[Condition]:
    """Return each condition by itself, and all of them together."""
    names = [f.name for f in fields(Condition)]
    single = [Condition(**{name: True}) for name in names if name != "preempted"]
    together = Condition(**dict.fromkeys(names, True))
    both = [replace(together, trees=False), replace(together, speculative=False)]
    return [*single, Condition(batched=True, preempted=True), *both]


def _loras(adapters: Sequence[Path]) -> list[LoRARequest]:
    return [LoRARequest(folder.name, i, str(folder)) for i, folder in enumerate(adapters, 1)]


def _adapters_of(num_requests: int, adapters: Sequence[Path]) -> list[LoRARequest | None]:
    """Return which request has which adapter."""
    turn: list[LoRARequest | None] = [None, *_loras(adapters)]
    return [turn[i % len(turn)] for i in range(num_requests)]


def check_lattice(
    folder: Path,
    conditions: Iterable[Condition],
    *,
    device: str = "cpu",
    adapters: Sequence[Path] = (),
    varied: Mapping[str, Any] | None = None,
    baseline: Run | None = None,
    **settings: Any,
) -> list[Outcome]:
    """Run the requests under each condition and compare with the baseline.

    Args:
        folder: A checkpoint.
        conditions: Which ones.
        device: Backend.
        adapters: PEFT folders; requests have them in turn, every so often none.
        varied: Engine settings of all runs but the baseline, such as the number of ranks.
        baseline: What :func:`run_baseline` gave for these settings; None: it is run now.
        **settings: Further engine settings of all runs, such as ``dtype``.
    """
    if baseline is None:
        baseline = run_baseline(folder, device=device, adapters=adapters, **settings)
    settings = {"device": device, "enable_lora": bool(adapters), **settings}
    outcomes = []
    for condition in conditions:
        found = run(folder, condition, {**settings, **(varied or {})}, baseline, adapters)
        failures = _differences(baseline.results, found.results)
        stages = (varied or {}).get("pipeline_parallel_size", 1)
        failures += _did_not_happen(condition, baseline, found, stages)
        outcomes.append(Outcome(condition, tuple(failures)))
    return outcomes


def run_baseline(
    folder: Path, *, device: str = "cpu", adapters: Sequence[Path] = (), **settings: Any
) -> Run:
    """Run the requests one at a time; arguments as of :func:`check_lattice`."""
    settings = {"device": device, "enable_lora": bool(adapters), **settings}
    return run(folder, Condition(), settings, adapters=adapters)


def run(
    folder: Path,
    condition: Condition,
    settings: dict[str, Any],
    baseline: Run | None = None,
    adapters: Sequence[Path] = (),
) -> Run:
    """Run all requests under one condition, on a model loaded for it.

    Args:
        folder: A checkpoint.
        condition: Whether tokens are proposed, too.
        settings: Of the engine.
        baseline: Proposals come from its answers, and one in five is wrong.
        adapters: As of :func:`check_lattice`.
    """
    block_size = settings.get("block_size", BLOCK_SIZE)
    config = read_model_config(folder)
    vision = config.vision
    picture = 0 if vision is None else vision.num_tokens(vision.input.height, vision.input.width)
    settings = {
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 16 + picture if condition.chunked else 512,
        "enable_prefix_caching": condition.warm,
        # In blocks of 8, the longest request takes 30 with its three sequences, all together 69;
        # with a picture in each of the seven, which some share. Blocks that a window left are given
        # back.
        "num_gpu_blocks_override": ((31 if config.sliding_window else 36) * 8 + 2 * picture)
        // block_size
        if condition.preempted
        else 200,
        "threads": 2 if condition.two_threads else 1,
        **settings,
    }
    if not condition.warm:  # tiers keep what is found again
        settings.pop("kv_offload_bytes", None)
    passes = 2 if condition.warm else 1
    if condition.streamed:
        streamed = _run_streamed(folder, condition, settings, passes, baseline, adapters)
        return asyncio.run(streamed)
    with LLM(str(folder), **settings) as llm:
        _arrange(llm.engine, condition, baseline)
        for prompt, adapter in _first(llm.engine.model_config, adapters):
            llm.generate(prompt, SamplingParams(max_tokens=1), lora_request=adapter)
        for _ in range(passes):
            work = requests(llm.engine.model_config)
            lora = _adapters_of(len(work), adapters)
            before = llm.engine.stats()
            if condition.batched:
                prompts, params = zip(*work, strict=True)
                outputs = llm.generate(list(prompts), params, False, lora)
            else:
                outputs = [
                    llm.generate(prompt, params, lora_request=adapter)[0]
                    for (prompt, params), adapter in zip(work, lora, strict=True)
                ]
        return _collect(outputs, before, llm.engine.stats())


def _first(
    config: ModelConfig, adapters: Sequence[Path]
) -> list[tuple[Prompt, LoRARequest | None]]:
    """Return what is run before: reading adapters and pictures would spread the starts."""
    read: list[tuple[Prompt, LoRARequest | None]] = [([5], own) for own in _loras(adapters)]
    pictures = [] if config.vision is None else requests(config)
    return [*read, *((prompt, None) for prompt, _ in pictures)]


def _arrange(engine: TextEngine, condition: Condition, baseline: Run | None) -> None:
    """Have happen what no setting brings about."""
    if condition.preempted:  # admission would not start more than fit
        engine.engine.scheduler.admission.admits = lambda *_: True  # type: ignore[method-assign]
    if condition.speculative or condition.trees:
        assert baseline is not None
        answers = [
            token_ids_of(prompt) + list(sequence[0])
            for (prompt, _), result in zip(
                requests(engine.model_config), baseline.results, strict=True
            )
            for sequence in result[1:]
        ]
        form = {"tree_width": 3, "tree_depth": 3} if condition.trees else {}
        num_proposed = NUM_PROPOSED * (2 if condition.trees else 1)
        use_script(
            engine, answers, 0.8, num_speculative_tokens=num_proposed, adaptive=False, **form
        )


async def _run_streamed(
    folder: Path,
    condition: Condition,
    settings: dict[str, Any],
    passes: int,
    baseline: Run | None,
    adapters: Sequence[Path],
) -> Run:
    llm = AsyncLLM(str(folder), **settings)
    _arrange(llm._engine, condition, baseline)
    try:
        for number, (prompt, adapter) in enumerate(_first(llm.model_config, adapters)):
            await _read_stream(
                llm, prompt, SamplingParams(max_tokens=1), f"first-{number}", adapter
            )
        for number in range(passes):
            before = llm.stats()
            work = requests(llm.model_config)
            lora = _adapters_of(len(work), adapters)
            streams = [
                _read_stream(llm, prompt, params, f"{number}-{i}", lora[i])
                for i, (prompt, params) in enumerate(work)
            ]
            if condition.batched:
                outputs = await _together(llm, streams)
            else:
                outputs = [await stream for stream in streams]
        return _collect(outputs, before, llm.stats())
    finally:
        await llm.shutdown()


async def _together(
    llm: AsyncLLM, streams: Sequence[Coroutine[Any, Any, RequestOutput]]
) -> list[RequestOutput]:
    """Read streams at once; the engine stands still until it has all requests.

    Else the first ones are over before the last one arrives where a machine stalls the event loop.
    """
    all_arrived = threading.Event()
    llm._send(all_arrived.wait)
    reading = asyncio.gather(*streams)
    try:
        while llm.progress().pending < len(streams) and not reading.done():
            await asyncio.sleep(0.001)
    finally:
        all_arrived.set()
    return await reading


async def _read_stream(
    llm: AsyncLLM,
    prompt: Prompt,
    params: SamplingParams,
    request_id: str,
    adapter: LoRARequest | None,
) -> RequestOutput:
    stream = llm.generate(prompt, params, request_id, lora_request=adapter)
    states = [state async for state in stream]
    final = states[-1]
    for state in states:
        for part, whole in zip(state.outputs, final.outputs, strict=True):
            assert whole.token_ids[: len(part.token_ids)] == part.token_ids
            assert whole.text.startswith(part.text)
    return final


def _collect(
    outputs: Sequence[RequestOutput], before: dict[str, float], after: dict[str, float]
) -> Run:
    results = [
        (
            output.prompt_logprobs,
            *(
                (s.token_ids, s.text, s.finish_reason, s.logprobs, s.cumulative_logprob)
                for s in output.outputs
            ),
        )
        for output in outputs
    ]
    counters = {name: value for name, value in after.items() if not isinstance(value, list)}
    stats = {name: value - before.get(name, 0) for name, value in counters.items()}
    return Run(results, stats, sum(output.num_cached_tokens for output in outputs))


def _differences(expected: list[Result], got: list[Result]) -> list[str]:
    failures = []
    for number, (one, other) in enumerate(zip(expected, got, strict=True)):
        if one != other:
            ids = [[s[0] for s in result[1:]] for result in (one, other)]
            what = "tokens" if ids[0] != ids[1] else "log-probabilities"
            failures.append(f"request {number}: other {what}")
    return failures


def _did_not_happen(condition: Condition, baseline: Run, found: Run, stages: int) -> list[str]:
    """Return what did not happen; where there are stages, a batch is divided between them."""
    most = min(stages / 2, 0.95)
    more_steps = found.stats["num_steps"] > baseline.stats["num_steps"]
    happened = {
        "batched": found.stats["num_steps"] < most * baseline.stats["num_steps"],
        "chunked": condition.batched or condition.speculative or condition.trees or more_steps,
        "warm": found.num_cached_tokens > 0,
        "preempted": found.stats["num_preemptions"] > 0,
        "speculative": found.stats.get(ACCEPTED, 0) > 0,
        "trees": found.stats.get(ACCEPTED, 0) > 0,
    }
    return [
        f"nothing was {n}" for n, seen in happened.items() if getattr(condition, n) and not seen
    ]


def _random_models(root: Path) -> list[Path]:
    from tools.random_checkpoint import PRESETS, random_checkpoint

    folders = []
    for name, config in PRESETS.items():
        if name.startswith("tiny-"):
            random_checkpoint(root / name, config)
            folders.append(root / name)
    return folders


def _quantized_models(root: Path) -> list[tuple[str, Path, dict[str, Any]]]:
    """Return names, checkpoints and settings."""
    from quire.checkpoints.gguf.gguf_types import QUANTIZED
    from tools.random_checkpoint import PRESETS, random_checkpoint
    from tools.random_gguf import random_gguf

    random_checkpoint(root / "llama", PRESETS["tiny-llama"])
    rounded = ("int8", "int4", "nf4")
    models = [(name, root / "llama", {"quantization": name}) for name in rounded]
    for name in QUANTIZED:
        random_gguf(root / f"{name}.gguf", name)
        models.append((name, root / f"{name}.gguf", {}))
    return models


def adapter_conditions(conditions: Sequence[Condition]) -> list[Condition]:
    """Return those that requests of different adapters, which share no blocks, can be in."""
    return [c for c in conditions if not (c.preempted and (c.warm or c.streamed))]


def _random_adapters(model: Path, out: Path) -> list[Path]:
    """Write two adapters of the linears of a model's layers."""
    from quire.models.adapters.places import read_places
    from tools.random_adapter import random_adapter

    layers = [place for place in read_places(model) if place.whole is None and place.columns]
    targets = {module.rpartition(".")[2] for place in layers for module in place.modules}
    return [
        random_adapter(model, out / str(i), rank=4, seed=i, targets=sorted(targets)) for i in (1, 2)
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 1 when a cell fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="default: quire-tiny and one of each family")
    parser.add_argument(
        "--quantized",
        action="store_true",
        help="instead a random model rounded at load, and one of each type of GGUF files",
    )
    parser.add_argument(
        "--speculative",
        action="store_true",
        help="only with proposed tokens, whatever else is on or off",
    )
    parser.add_argument(
        "--adapters",
        action="store_true",
        help="requests have one of two random adapters or none; of models of safetensors",
    )
    arguments = parser.parse_args(words)
    if arguments.quantized and arguments.models:
        parser.error("--quantized names its models itself")

    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from quire.store.hub import resolve_model

    logging.getLogger("quire").setLevel(logging.WARNING)  # hundreds of engines are started
    console, conditions = Console(), all_conditions()
    if arguments.adapters:
        conditions = adapter_conditions(conditions)
    if arguments.speculative:
        conditions = [condition for condition in conditions if condition.speculative]
    with tempfile.TemporaryDirectory() as temporary:
        models: list[tuple[str, Path, dict[str, Any]]]
        if arguments.quantized:
            models = _quantized_models(Path(temporary))
        else:
            folders = [resolve_model(name) for name in arguments.models or ["quire-tiny"]]
            if not arguments.models:
                folders += _random_models(Path(temporary))
            models = [(folder.name, folder, {}) for folder in folders]
        columns = {}
        progress = Console(stderr=True)
        for name, folder, settings in track(models, "running", console=progress, transient=True):
            made = Path(temporary) / f"adapters of {name}"
            adapters = _random_adapters(folder, made) if arguments.adapters else ()
            columns[name] = check_lattice(folder, conditions, adapters=adapters, **settings)
    legend = ", ".join(f"{f.name[0].upper()} {f.name}" for f in fields(Condition))
    console.print(f"Same request, same tokens. {legend.replace('_', ' ')}.")
    names, fitting = list(columns), max(1, (console.width - 13) // 11)
    for begin in range(0, len(names), fitting):
        shown = names[begin : begin + fitting]
        table = Table("condition", *(name.removeprefix("tiny-") for name in shown))
        for row, condition in enumerate(conditions):
            failing = [columns[name][row].failures for name in shown]
            table.add_row(
                condition.code, *("[red]FAIL[/]" if f else "[green]pass[/]" for f in failing)
            )
        console.print(table)
    failed = [
        f"{name}, {outcome.condition.name}: {failure}"
        for name, outcomes in columns.items()
        for outcome in outcomes
        for failure in outcome.failures
    ]
    for line in failed:
        console.print(line, style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
