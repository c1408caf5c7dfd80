"""Rows of floats as blocks of any GGUF type: plain rounding, or the search, on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import WRITABLE, BlockGroups, quantize
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.quantization.producers.float4 import quantize_mxfp4
from quire.quantization.producers.gguf.gguf_blocks import KINDS, search
from quire.quantization.producers.gguf.gguf_pack import pack
from quire.quantization.producers.gguf.gguf_vector_pack import pack_vectors
from quire.quantization.producers.gguf.gguf_vector_search import search_vectors, vector_weights

#: Types that floats can be made into.
PRODUCED = tuple(dict.fromkeys([*WRITABLE, *KINDS, *VECTOR_CODES, "MXFP4"]))
#: Elements that are searched at a time by a thread: what the search holds of them fits a cache.
PART = 1 << 15


def quantize_rows(
    name: str, rows: np.ndarray, importance: np.ndarray | None = None, threads: int = 1
) -> np.ndarray:
    """Return rows as bytes of a type; the bytes do not depend on ``threads``.

    Q8_0, Q4_0 and Q4_1 are rounded as ggml's reference functions do where no importance is given.
    MXFP4 takes no importance.

    Args:
        name: One of :data:`PRODUCED`.
        rows: (N, K) float32, finite; K a whole number of blocks.
        importance: (K,) float32 >= 0: mean squares of the inputs, or None.
        threads: Number of threads that search.

    Returns:
        (N, bytes of a row) uint8.
    """
    if name in WRITABLE and (importance is None or name not in KINDS):
        return quantize(name, rows)
    layout = LAYOUTS[name]
    blocks = np.ascontiguousarray(rows, np.float32).reshape(-1, layout.block_size)
    per_row = rows.shape[1] // layout.block_size
    counts = None if importance is None else importance.reshape(per_row, -1).astype(np.float32)
    made = np.empty((len(blocks), layout.block_bytes), np.uint8)
    step = PART // layout.block_size

    def make(begin: int) -> None:
        part = slice(begin, begin + step)
        mine = None
        if counts is not None:
            mine = counts[np.arange(begin, min(begin + step, len(blocks))) % per_row]
        made[part] = _make(name, blocks[part], mine)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(make, range(0, len(blocks), step)):
            pass
    return made.reshape(len(rows), -1)


def _make(name: str, blocks: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Return blocks as bytes, chosen by the search of the type's kind."""
    if name in VECTOR_CODES:
        weights = vector_weights(blocks, importance)
        return pack_vectors(name, search_vectors(name, blocks, weights))
    if name == "MXFP4":
        made = quantize_mxfp4(name, blocks)
        return pack(name, BlockGroups(made.codes, made.scales))
    return pack(name, search(name, blocks, importance))
