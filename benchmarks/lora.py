"""What adapters cost: decode steps of a batch with none, one and many of them, taking turns.

One model is loaded twice, without and with ``enable_lora``. All cases take turns, a few steps each,
so that a noisy moment hits all of them. Stated is each case's rate next to that of the model
without adapters, and what a prompt with an adapter takes next to one without; then what decoding
requests notice when one arrives whose adapter must be read first.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from benchmarks import results
from benchmarks.engine_steps import prompt, stop_decoding
from quire import LLM, LoRARequest, SamplingParams
from tools.random_adapter import random_adapter
from tools.random_checkpoint import PRESETS, random_checkpoint

_names, _sequences = map(str, count()), count(1000)
PREFILL_TOKENS = 256
#: Without anything to read, to compare with; most reads take fewer.
COLD_STEPS = 24
Adapters = Sequence[LoRARequest | None]


def decode(llm: LLM, adapters: Adapters, steps: int) -> list[float]:
    """Return the seconds of steps that decode a sequence with each of the adapters."""
    params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True, detokenize=False)
    for number, adapter in enumerate(adapters):
        ids = prompt(16, number)
        llm.engine.add_request(f"lora-{next(_names)}", ids, params, lora_request=adapter)
    while len(llm.engine.step()) < len(adapters):
        pass
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        outputs = llm.engine.step()
        seconds.append(time.perf_counter() - start)
        assert len(outputs) == len(adapters), len(outputs)
    stop_decoding(llm)
    return seconds


def prefill(llm: LLM, adapter: LoRARequest | None) -> float:
    """Return the seconds of a step that computes a prompt."""
    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    ids = prompt(PREFILL_TOKENS, next(_sequences))
    llm.engine.add_request(f"lora-{next(_names)}", ids, params, lora_request=adapter)
    start = time.perf_counter()
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return time.perf_counter() - start


def cold_steps(llm: LLM, adapters: Adapters, cold: LoRARequest) -> tuple[list[float], list[float]]:
    """Return the seconds of decode steps, and of those while another request's adapter is read."""
    params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True, detokenize=False)
    for number, adapter in enumerate(adapters):
        ids = prompt(16, number)
        llm.engine.add_request(f"lora-{next(_names)}", ids, params, lora_request=adapter)
    while len(llm.engine.step()) < len(adapters):
        pass
    before, meanwhile = list[float](), list[float]()
    for _ in range(COLD_STEPS):
        start = time.perf_counter()
        llm.engine.step()
        before.append(time.perf_counter() - start)
    llm.engine.add_request(f"lora-{next(_names)}", prompt(16, 99), params, lora_request=cold)
    while True:
        start = time.perf_counter()
        outputs = llm.engine.step()
        if len(outputs) > len(adapters):
            break
        meanwhile.append(time.perf_counter() - start)
    stop_decoding(llm)
    return before, meanwhile


def measure_cold(
    llm: LLM, loras: Sequence[LoRARequest], root: Path, rounds: int, rank: int
) -> dict[str, dict[str, float]]:
    """Return the longest steps of each round over the median one: without, and with a cold one."""
    ratios: dict[str, list[float]] = {"nothing is read": [], "an adapter is read": []}
    for number in range(rounds):
        folder = random_adapter(
            root / "model", root / f"cold{number}", rank=rank, seed=100 + number, dtype="bfloat16"
        )
        cold = LoRARequest(folder.name, 100 + number, str(folder))
        before, meanwhile = cold_steps(llm, loras, cold)
        usual = results.summary(before)["median"]
        ratios["nothing is read"].append(max(before[: len(meanwhile)], default=usual) / usual)
        ratios["an adapter is read"].append(max(meanwhile, default=usual) / usual)
    return {name: results.summary(values) for name, values in ratios.items()}


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="llama-3.2-1b", choices=sorted(PRESETS))
    parser.add_argument("--quantization", default="int4")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(words)
    logging.getLogger("quire").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary:
        root, batch = Path(temporary), options.batch
        random_checkpoint(root / "model", PRESETS[options.preset], dtype="bfloat16")
        folders = [
            random_adapter(
                root / "model", root / f"a{i}", rank=options.rank, seed=i, dtype="bfloat16"
            )
            for i in range(batch)
        ]
        loras = [LoRARequest(folder.name, i, str(folder)) for i, folder in enumerate(folders, 1)]
        settings = {
            "quantization": options.quantization,
            "max_model_len": 2048,
            "max_num_seqs": batch,
            "kv_cache_memory_bytes": 2**28,
            "threads": options.threads,
            "enable_prefix_caching": False,
            "packed_weights_cache": str(root / "packed"),
        }
        plain = LLM(str(root / "model"), **settings)
        adapted = LLM(
            str(root / "model"),
            enable_lora=True,
            max_loras=batch,
            max_lora_rank=options.rank,
            **settings,
        )
        no_adapters: Adapters = [None] * batch
        cases: dict[str, tuple[LLM, Adapters]] = {
            "without adapters": (plain, no_adapters),
            "enabled, none used": (adapted, no_adapters),
            "one adapter in one row": (adapted, [loras[0], *no_adapters[1:]]),
            "one adapter in all rows": (adapted, [loras[0]] * batch),
            "an adapter for each row": (adapted, loras),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        prompts: dict[str, list[float]] = {"without adapters": [], "an adapter": []}
        for number in range(options.rounds + 1):
            for name, (llm, adapters) in cases.items():
                seconds = decode(llm, adapters, options.steps)
                times[name] += seconds if number else []
            for name, llm, adapter in (
                ("without adapters", plain, None),
                ("an adapter", adapted, loras[0]),
            ):
                took = prefill(llm, adapter)
                prompts[name] += [took] if number else []
        summaries = {name: results.summary(seconds) for name, seconds in times.items()}
        prefills = {name: results.summary(seconds) for name, seconds in prompts.items()}
        longest = measure_cold(adapted, loras[:-1], root, options.rounds, options.rank)
    for name, row in longest.items():
        print(f"longest step of the others, {name}: {row['median']:.2f} of their median")
    for kind, table in (("decode", summaries), (f"prefill {PREFILL_TOKENS}", prefills)):
        base = table["without adapters"]["median"]
        for name, row in table.items():
            row["relative_rate"] = base / row["median"]
            milliseconds, part = 1000 * row["median"], row["relative_rate"]
            print(f"{kind:12} {name:26} {milliseconds:8.2f} ms  {part:.3f} of the rate without")
    path = results.write(
        results.per_processor(f"lora_{options.preset}"),
        {"decode": summaries, "prefill": prefills, "longest_step": longest},
        settings=vars(options),
    )
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
