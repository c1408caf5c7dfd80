"""Random blocks of GGUF's types: every bit pattern a file may have, scales of a sane size."""

from __future__ import annotations

import numpy as np

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import FORMS, dequantize
from quire.kernels.matrices.block_matrix import BlockMatrix
from tools.random_gguf import EXPONENTS, HALVES, put_halves


def random_rows(name: str, num_rows: int, num_blocks: int, seed: int = 0) -> np.ndarray:
    """Return rows whose blocks have every bit random but the scales finite, some of them 0."""
    generator = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    blocks = generator.integers(0, 256, (num_rows * num_blocks, layout.block_bytes), np.uint8)
    for at in HALVES.get(name, ()):
        scales = generator.standard_normal(len(blocks)).astype(np.float16)
        scales[2::5], scales[3::5] = 0, 6e-8
        put_halves(name, blocks, at, scales)
    if name in EXPONENTS:
        blocks[:, EXPONENTS[name]] = generator.integers(112, 144, len(blocks), np.uint8)
    return blocks.reshape(num_rows, -1)


def rows_of_every_power() -> np.ndarray:
    """Return (255, bytes of 4 blocks) of MXFP4: every scale that is a number, every code."""
    rows = random_rows("MXFP4", 255, 4)
    blocks = rows.reshape(255, 4, 17)
    blocks[:, :, 0] = np.arange(255)[:, None]
    blocks[:, 0, 1:] = np.arange(16) * 17
    return rows


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
