"""What pictures cost others, and how fast they are encoded.

A stream decodes while two requests with a picture each arrive. Stated are the gaps between its
tokens: alone, while pictures are encoded between its steps, and while it shares steps with the
prompts that hold them. Then the encoder alone next to transformers on torch's CPU kernels, each of
the same shape, with random weights.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.engine_steps import prompt, start_decoding, stop_decoding
from quire import LLM, SamplingParams
from quire.core.request import Picture
from quire.kernels.backend import Backend
from quire.kernels.registry import create_backend
from quire.models.config_reader import read_model_config
from quire.models.vision.loader import load_encoder
from quire.models.vision.slices import finish
from tools.random_checkpoint import PRESETS, random_checkpoint

NUM_REQUESTS = 2
MOST_STEPS = 2000
DTYPE = "bfloat16"
_numbers = count()


def random_pixels(edge: int) -> np.ndarray:
    """Return a picture that there was none of yet."""
    return np.random.default_rng(next(_numbers)).integers(0, 256, (edge, edge, 3), np.uint8)


def add_request(llm: LLM, name: str) -> None:
    """Add a request whose picture nobody has seen."""
    vision = llm.engine.model_config.vision
    assert vision is not None, "a model of text"
    edge, ids = vision.image_size, prompt(16, next(_numbers))
    pixels = random_pixels(edge).tobytes()
    picture = Picture(len(ids), vision.num_tokens, str(next(_numbers)), pixels, edge, edge)
    ids = [*ids, *[vision.token_id] * vision.num_tokens, 5, 6]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.engine.add_request(name, {"prompt_token_ids": ids, "pictures": [picture]}, params)


def gaps_of_a_stream(llm: LLM, steps: int) -> dict[str, list[float]]:
    """Return the seconds between tokens: alone, while pictures are encoded, and with prompts.

    Args:
        llm: Has nothing to do.
        steps: Of the stream alone.
    """
    engine = llm.engine.engine
    start_decoding(llm, 1, 64, MOST_STEPS)
    gaps: dict[str, list[float]] = {"alone": [], "encoding": [], "with prompts": []}

    def step(kind: str) -> set[str]:
        start = time.perf_counter()
        outputs = llm.engine.step()
        took = time.perf_counter() - start
        has_prompt = len(outputs) > 1 or not all(r.decodes for r in engine.scheduler.running)
        gaps["with prompts" if has_prompt else kind].append(took)
        return {output.request_id for output in outputs}

    for _ in range(steps):
        step("alone")
    names = {f"pictures-{next(_numbers)}" for _ in range(NUM_REQUESTS)}
    for name in names:
        add_request(llm, name)
    while names:
        names -= step("encoding")
    stop_decoding(llm)
    return gaps


def encode_cases(folder: Path, backend: Backend, dtype: str) -> dict[str, Callable[[], Any]]:
    """Return encoders of one picture and of two: ours and that of transformers."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = read_model_config(folder)
    vision = config.vision
    assert vision is not None, "a model of text"
    encoder = load_encoder(folder, config, backend, dtype)
    assert encoder is not None
    theirs = CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=vision.hidden_size,
            intermediate_size=vision.intermediate_size,
            num_hidden_layers=vision.num_layers,
            num_attention_heads=vision.num_heads,
            image_size=vision.image_size,
            patch_size=vision.patch_size,
        )
    )
    projector = torch.nn.Sequential(
        torch.nn.Linear(vision.hidden_size, config.hidden_size),
        torch.nn.GELU(),
        torch.nn.Linear(config.hidden_size, config.hidden_size),
    )
    kind = getattr(torch, dtype)
    theirs, projector = theirs.to(kind).eval(), projector.to(kind).eval()
    edge = vision.image_size

    def ours(number: int) -> Callable[[], Any]:
        pictures = [random_pixels(edge) for _ in range(number)]
        return lambda: finish(encoder.encode(pictures))

    def torch_s(number: int) -> Callable[[], Any]:
        values = torch.randn((number, 3, edge, edge), dtype=kind)

        def run() -> Any:
            with torch.inference_mode():
                return projector(theirs(pixel_values=values).last_hidden_state[:, 1:])

        return run

    made = ((f"quire {n}", f"transformers {n}", ours(n), torch_s(n)) for n in (1, 2))
    return {name: run for a, b, one, other in made for name, run in ((a, one), (b, other))}


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="llava-1b", choices=sorted(PRESETS))
    parser.add_argument("--quantization", default="int4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(words)
    logging.getLogger("quire").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        random_checkpoint(folder, PRESETS[options.preset], dtype=DTYPE)
        encoding = _measure_encoders(folder, options.threads, options.rounds)
        streams = _measure_streams(folder, options)
    path = results.write(
        results.per_processor("pictures"),
        {"encoding": encoding, "streams": streams},
        settings=vars(options),
    )
    print(path)
    return 0


def _measure_encoders(folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads)
    backend = create_backend("cpu", threads=threads)
    found = results.interleave(encode_cases(folder, backend, DTYPE), repeats=rounds)
    for name, row in found.items():
        print(f"encode {name:15} {1000 * row['median']:9.1f} ms")
    return found


def _measure_streams(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    llm = LLM(
        str(folder),
        quantization=options.quantization,
        max_model_len=4096,
        kv_cache_memory_bytes=2**28,
        threads=options.threads,
        enable_prefix_caching=False,
    )
    gaps: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for kind, seconds in gaps_of_a_stream(llm, options.steps).items():
            gaps.setdefault(kind, []).extend(seconds)
    rows = {kind: results.summary(seconds) for kind, seconds in gaps.items()}
    for kind, row in rows.items():
        median, longest = 1000 * row["median"], 1000 * row["max"]
        print(f"gaps {kind:12} {median:8.1f} ms, longest {longest:8.1f} ms")
    return rows


if __name__ == "__main__":
    sys.exit(main())
