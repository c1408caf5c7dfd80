"""Random blocks of GGUF's types: every bit pattern a file may have, scales of a sane size."""

from __future__ import annotations

import numpy as np

from quire.kernels.block_matrix import BlockMatrix
from quire.quantization.gguf_layouts import LAYOUTS
from quire.quantization.gguf_types import FORMS, dequantize

#: Where a block has its float16 numbers.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


def random_rows(name: str, num_rows: int, num_blocks: int, seed: int = 0) -> np.ndarray:
    """Return rows whose blocks have every bit random but the scales finite, some of them 0."""
    generator = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    blocks = generator.integers(0, 256, (num_rows * num_blocks, layout.block_bytes), np.uint8)
    for at in HALVES.get(name, ()):
        scales = generator.standard_normal(len(blocks)).astype(np.float16)
        scales[2::5], scales[3::5] = 0, 6e-8
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1)


def random_matrix(name: str, rows: int, columns: int, seed: int = 0) -> BlockMatrix:
    """Return a matrix of such blocks."""
    layout = LAYOUTS[name]
    return BlockMatrix(
        name="w",
        type_name=name,
        type_code=layout.code,
        shape=(rows, columns),
        rows=random_rows(name, rows, columns // layout.block_size, seed),
        form=FORMS[name],
        dequantize=dequantize,
    )
