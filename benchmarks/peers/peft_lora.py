"""Decode steps of 8 sequences with an adapter each: Quire and transformers with PEFT, in turn.

One random checkpoint, the same adapters. PEFT mixes adapters in a batch by ``adapter_names``; it
computes in float32 and in bfloat16. Quire's first token follows a prompt as long as PEFT's.

    scripts/bench peft_lora
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks import results
from benchmarks.engine_steps import prompt
from benchmarks.lora import decode
from quire import LLM, LoRARequest
from tools.random_adapter import random_adapter
from tools.random_checkpoint import PRESETS, random_checkpoint

PROMPT_TOKENS = 16
PEER_TYPES = ("float32", "bfloat16")


def load_peft(model: Path, adapters: Sequence[Path], dtype: torch.dtype) -> PeftModel:
    """Load a checkpoint with all adapters."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    first, *others = adapters
    loaded = PeftModel.from_pretrained(base, str(first), adapter_name=first.name)
    for folder in others:
        loaded.load_adapter(str(folder), adapter_name=folder.name)
    return loaded.eval()


@torch.inference_mode()
def peft_steps(model: PeftModel, names: list[str], steps: int) -> list[float]:
    """Return the seconds of steps that decode a sequence with each of the adapters."""
    ids = torch.tensor([prompt(PROMPT_TOKENS, number) for number in range(len(names))])
    cache, seconds = DynamicCache(config=model.config), []
    for _ in range(steps + 1):
        start = time.perf_counter()
        logits = model(
            input_ids=ids, past_key_values=cache, adapter_names=names, logits_to_keep=1
        ).logits
        ids = logits[:, -1:].argmax(-1)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="llama-3.2-1b", choices=sorted(PRESETS))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(words)
    logging.getLogger("quire").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        root, batch = Path(temporary), options.batch
        random_checkpoint(root / "model", PRESETS[options.preset], dtype="bfloat16")
        folders = [
            random_adapter(root / "model", root / f"a{i}", rank=options.rank, seed=i)
            for i in range(batch)
        ]
        loras = [LoRARequest(folder.name, i, str(folder)) for i, folder in enumerate(folders, 1)]
        settings = {
            "max_model_len": 2048, "max_num_seqs": batch, "kv_cache_memory_bytes": 2**28,
            "threads": options.threads, "enable_prefix_caching": False,
            "enable_lora": True, "max_loras": batch, "max_lora_rank": options.rank,
        }  # fmt: skip
        engines = {
            "quire, int4 weights": LLM(str(root / "model"), quantization="int4", **settings),
            "quire, bfloat16 weights": LLM(str(root / "model"), **settings),
        }
        peers = {
            f"peft, {name}": load_peft(root / "model", folders, getattr(torch, name))
            for name in PEER_TYPES
        }
        cases: dict[str, Callable[[], list[float]]] = {
            name: lambda llm=llm: decode(llm, loras, options.steps) for name, llm in engines.items()
        }
        names = [folder.name for folder in folders]
        for name, peer in peers.items():
            cases[name] = lambda peer=peer: peft_steps(peer, names, options.steps)
        times: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(options.rounds + 1):
            for name, run in cases.items():
                seconds = run()
                times[name] += seconds if number else []
    summaries = {name: results.summary(seconds) for name, seconds in times.items()}
    base = min(summaries[name]["median"] for name in peers)
    for name, row in summaries.items():
        row["relative_rate"] = base / row["median"]
        milliseconds, part = 1000 * row["median"], row["relative_rate"]
        print(f"{name:26} {milliseconds:9.2f} ms  {part:.2f} of PEFT's best rate")
    path = results.write(
        results.per_processor(f"peft_lora_{options.preset}"), summaries, settings=vars(options)
    )
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
