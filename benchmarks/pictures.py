"""What pictures cost others, and how fast they are encoded.

A stream decodes while two requests with a picture each arrive. Stated are the gaps between its
tokens: alone, while pictures are encoded between its steps, and while it shares steps with the
prompts that hold them; and next to those what two prompts of as many tokens, all of them text, do
to it: that part has nothing to do with pictures. Of the gaps while pictures are encoded it is
stated what of them is encoding, in seconds and as a share: up to a half a stream waits no longer
for an encoder than for its own step. Then the encoder of the first model alone next to transformers
on torch's CPU kernels, of the same shape, with random weights.

Two models: the Llama 1B shape with CLIP-L/336, and the Qwen2.5 0.5B shape with an
encoder for pictures of 896 x 896, of which a head of a layer is work for several steps.
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
from quire.core.engine_request import Picture
from quire.kernels.backend import Backend
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.vision.encoder_loader import load_encoder
from quire.models.vision.slices import finish
from tools.random_checkpoint import PRESETS, random_checkpoint

NUM_REQUESTS = 2
MOST_STEPS = 1900
DTYPE = "bfloat16"
KINDS = ("alone", "encoding", "of it encoded", "picture prompts", "text prompts")
PICTURE_PRESETS = ["llava-1b", "llava-0.5b-896"]
_numbers = count()


def random_pixels(edge: int) -> np.ndarray:
    """Return a picture that there was none of yet."""
    return np.random.default_rng(next(_numbers)).integers(0, 256, (edge, edge, 3), np.uint8)


def add_request(llm: LLM, name: str, *, has_picture: bool) -> None:
    """Add a request whose picture no earlier request had, or one of as many tokens of text."""
    vision = llm.engine.model_config.vision
    assert vision is not None, "a model of text"
    edge = vision.image_size
    num_rows = vision.num_tokens(edge, edge)
    ids = prompt(18 + num_rows, next(_numbers))
    request: dict[str, Any] = {"prompt_token_ids": ids}
    if has_picture:
        ids[16:-2] = [vision.writing.row_id] * num_rows
        pixels = random_pixels(edge).tobytes()
        request["pictures"] = [Picture(16, num_rows, str(next(_numbers)), pixels, edge, edge)]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.engine.add_request(name, request, params)


def gaps_of_a_stream(llm: LLM, steps: int) -> dict[str, list[float]]:
    """Return the seconds between tokens by what else is done, and those of encoding in them.

    Args:
        llm: Has nothing to do.
        steps: Of the stream alone.
    """
    engine = llm.engine.engine
    gaps: dict[str, list[float]] = {
        kind: []
        for kind in ("alone", "encoding", "of it encoded", "picture prompts", "text prompts")
    }
    pictures = engine.executor.pictures
    encode = pictures.encode
    encoded = 0.0

    def timed(seconds: float) -> None:
        nonlocal encoded
        start = time.perf_counter()
        encode(seconds)
        encoded = time.perf_counter() - start

    def step(kind: str, with_prompts: str = "") -> set[str]:
        nonlocal encoded
        encoded = 0.0
        start = time.perf_counter()
        outputs = llm.engine.step()
        took = time.perf_counter() - start
        if len(outputs) > 1 or not all(r.decodes for r in engine.scheduler.running):
            kind = with_prompts
        gaps[kind].append(took)
        if kind == "encoding":
            gaps["of it encoded"].append(encoded)
        return {output.request_id for output in outputs}

    def prompts(kind: str, with_prompts: str) -> None:
        names = {f"{with_prompts} {next(_numbers)}" for _ in range(NUM_REQUESTS)}
        for name in names:
            add_request(llm, name, has_picture=kind == "encoding")
        while names:
            names -= step(kind, with_prompts)

    start_decoding(llm, 1, 64, MOST_STEPS)
    pictures.encode = timed
    try:
        for _ in range(steps):
            step("alone")
        prompts("alone", "text prompts")
        for _ in range(steps):
            step("alone")
        prompts("encoding", "picture prompts")
    finally:
        pictures.encode = encode
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
    parser.add_argument("--presets", nargs="+", default=PICTURE_PRESETS, choices=PICTURE_PRESETS)
    parser.add_argument("--quantization", default="int4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(words)
    logging.getLogger("quire").setLevel(logging.WARNING)
    encoding, streams = {}, {}
    for number, preset in enumerate(options.presets):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            random_checkpoint(folder, PRESETS[preset], dtype=DTYPE)
            print(preset)
            streams[preset] = _measure_streams(folder, options)
            if number == 0:
                encoding = _measure_encoders(folder, options.threads, options.rounds)
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
        max_model_len=6144,
        kv_cache_memory_bytes=2**28,
        threads=options.threads,
        enable_prefix_caching=False,
    )
    gaps: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for kind, seconds in gaps_of_a_stream(llm, options.steps).items():
            gaps.setdefault(kind, []).extend(seconds)
    rows = {kind: _distribution(seconds) for kind, seconds in gaps.items()}
    pairs = zip(gaps["of it encoded"], gaps["encoding"], strict=True)
    shares = _distribution([encoded / gap for encoded, gap in pairs])
    for kind, row in rows.items():
        found = [f"{name} {1000 * row[name]:7.1f}" for name in ("median", "p99", "max")]
        print(f"gaps {kind:15} {', '.join(found)} ms")
    print("shares " + ", ".join(f"{name} {shares[name]:.2f}" for name in ("median", "p99", "max")))
    return {**rows, "encoded share": shares}


def _distribution(seconds: list[float]) -> dict[str, float]:
    return {**results.summary(seconds), "p99": float(np.percentile(seconds, 99))}


if __name__ == "__main__":
    sys.exit(main())
