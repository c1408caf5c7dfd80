"""Write a GGUF file of any tensor type with random blocks: real bit patterns, sane scales.

For tests and benchmarks of the types that no program here quantizes to. Vectors are F32.
The file is complete; its text is noise. The model is a small Llama whose rows are whole blocks of
every type.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import dequantize, quantize
from quire.checkpoints.gguf.gguf_writer import TensorPlan, write_gguf
from quire.models.gguf.gguf_export import GgufExport
from quire.text.tokenizers.gguf_vocabulary import gguf_vocabulary
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Where a block has its float16 scale and, in some types, that of its offsets.
HALVES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,),
    "IQ1_M": (48,),
    "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "head_dim": 64,
}
#: Of the values of a matrix.
DEVIATION = 0.06
#: Where a block has a power of two as its scale, and which give about that deviation.
EXPONENTS, POWERS = {"MXFP4": 0}, (120, 123)


def random_gguf(
    path: Path,
    type_name: str,
    preset: str = "tiny-llama",
    seed: int = 0,
    config: dict[str, Any] | None = None,
) -> None:
    """Write a small model whose matrices all have one type.

    Args:
        path: Replaced when it is there.
        type_name: A key of :data:`quire.checkpoints.gguf.gguf_layouts.LAYOUTS`.
        preset: Of :data:`tools.random_checkpoint.PRESETS`, with the sizes above.
        seed: The same seed gives the same bytes.
        config: In place of a preset's, as in ``config.json``.
    """
    metadata, tensors = _floats(json.dumps(config or PRESETS[preset] | SIZES), seed)
    generator = np.random.default_rng(seed)
    write_gguf(path, metadata, [_plan(plan, type_name, generator) for plan in tensors])


@lru_cache(maxsize=4)
def _floats(config: str, seed: int) -> tuple[dict[str, Any], list[TensorPlan]]:
    """Return the metadata and float32 tensors of a random model, the same for all types.

    Args:
        config: As in ``config.json``.
        seed: The same seed gives the same values.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        random_checkpoint(folder, json.loads(config), seed=seed)
        export = GgufExport(folder, "F32")
        metadata = export.metadata | gguf_vocabulary(folder, export.config.vocab_size)
        return metadata, [_kept(plan) for plan in export.tensors]


def _kept(plan: TensorPlan) -> TensorPlan:
    """Return a tensor whose values are in memory: its file goes."""
    return replace(plan, chunks=partial(iter, list(plan.chunks())))


def random_blocks(type_name: str, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return (count, bytes of a block) uint8: all bits random but those of the float16 numbers.

    Scales are such that the values' mean is about 0 and their deviation :data:`DEVIATION`.
    """
    layout = LAYOUTS[type_name]
    blocks = generator.integers(0, 256, (count, layout.block_bytes), np.uint8)
    if type_name in EXPONENTS:
        blocks[:, EXPONENTS[type_name]] = generator.integers(*POWERS, count)
        return blocks
    # Values are linear in both numbers, so a sample of each alone tells what they must be.
    sample = generator.integers(0, 256, (64, layout.block_bytes), np.uint8)
    alone = []
    for place in HALVES[type_name]:
        for at in HALVES[type_name]:
            put_halves(type_name, sample, at, np.full(len(sample), at == place, np.float16))
        alone.append(dequantize(type_name, sample))
    numbers = [1.0]
    values = alone[0]
    if len(alone) == 2:
        numbers.append(-alone[0].mean() / alone[1].mean())
        values = alone[0] + numbers[1] * alone[1]
    spread = DEVIATION / values.std() * generator.uniform(0.8, 1.2, count)
    for at, number in zip(HALVES[type_name], numbers, strict=True):
        stored = (number * spread).astype(np.float16)
        put_halves(type_name, blocks, at, stored)
    return blocks


def put_halves(type_name: str, blocks: np.ndarray, at: int, halves: np.ndarray) -> None:
    """Write a float16 into each block at a place of :data:`HALVES`.

    That of ``IQ1_M`` is in four parts, the top 4 bits of 16 each.
    """
    if type_name != "IQ1_M":
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
        return
    for i in range(4):
        part = (halves.view(np.uint16) >> 4 * i & 15).astype(np.uint8)
        top = blocks[:, at + 2 * i + 1]
        top[:] = top & 15 | part << 4


def _plan(plan: TensorPlan, type_name: str, generator: np.random.Generator) -> TensorPlan:
    layout = LAYOUTS[type_name]
    if len(plan.shape) == 1:
        return plan
    if not layout.is_quantized:
        return replace(plan, layout=layout, chunks=partial(_rounded, plan, type_name))
    data = random_blocks(type_name, int(np.prod(plan.shape)) // layout.block_size, generator)
    return replace(plan, layout=layout, chunks=partial(iter, [data.tobytes()]))


def _rounded(plan: TensorPlan, type_name: str) -> Iterator[bytes]:
    for chunk in plan.chunks():
        yield quantize(type_name, np.frombuffer(chunk, np.float32)).tobytes()
