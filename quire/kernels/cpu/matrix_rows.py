"""From how many rows on linears take matrix tiles: measured once for a processor that has them.

Never changes a bit of a result (``native/runtime/matrix_rows.h``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from quire.kernels.cpu import measured_once
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.host_tensor import HostTensor
from quire.kernels.quantized_tensor import QuantizedTensor

NAME, KEYS = "matrix_rows", ("quantized", "bfloat16")
#: Numbers of rows that are tried.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
ROUNDS = 5
#: Rows that no product has: all go without tiles.
NEVER = 1 << 30


def choose_matrix_rows() -> None:
    """Set what was measured on this processor, now where it never was; nothing without AMX."""
    if native.isa() != "amx":
        return
    found = measured_once.remembered(NAME, KEYS)
    if found is None:
        found = measure()
        measured_once.remember(NAME, dict(zip(KEYS, found, strict=True)))
    native.set_matrix_rows(*(int(rows) for rows in found))


def measure(inputs: int = 1024, outputs: int = 2048) -> tuple[int, int]:
    """Return the rows from which tiles are faster for quantized and for bfloat16 weights.

    Takes a fraction of a second on the threads the kernels have, with weights of some MiB. Should
    this processor's tiles have other bits than its vectors, then quantized weights never go in
    tiles, and bfloat16 ones always: a row's bits must not depend on the rows next to it.
    """
    before = native.matrix_rows()
    random = np.random.default_rng(0)
    codes = random.integers(0, 16, (outputs, inputs), np.uint8)
    scales = random.uniform(0.5, 2, (outputs, inputs // 32)).astype(np.float16)
    brains = (random.standard_normal((outputs, inputs), np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )
    quantized = CpuLinear([QuantizedTensor("w", bits=4, group_size=32, codes=codes, scales=scales)])
    bfloat16 = CpuLinear([HostTensor("w", "bfloat16", brains)])
    try:
        return (
            least_rows(partial(_time, quantized)) if agree(partial(_product, quantized)) else NEVER,
            least_rows(partial(_time, bfloat16)) if agree(partial(_product, bfloat16)) else 1,
        )
    finally:
        native.set_matrix_rows(*before)


def agree(product: Callable[[bool], np.ndarray]) -> bool:
    """Return whether the product, told to take tiles or not, has the same bits."""
    return product(True).tobytes() == product(False).tobytes()


def least_rows(seconds: Callable[[int, bool], float]) -> int:
    """Return the least of :data:`ROWS` from which on all take no longer with tiles than without.

    Args:
        seconds: Called with a number of rows and whether they go in tiles.
    """
    least = NEVER
    for rows in reversed(ROWS):
        if seconds(rows, True) > seconds(rows, False):
            break
        least = rows
    return least


def _use_tiles(tiles: bool) -> None:
    least = 1 if tiles else NEVER
    native.set_matrix_rows(least, least)


def _product(layer: CpuLinear, tiles: bool) -> np.ndarray:
    """Multiply rows from large to so small that their products are denormal or nothing."""
    _use_tiles(tiles)
    x = np.random.default_rng(1).standard_normal((ROWS[-1], layer.in_features), np.float32)
    return layer(x * np.logspace(3, -42, len(x), dtype=np.float32)[:, None])


def _time(layer: CpuLinear, rows: int, tiles: bool) -> float:
    _use_tiles(tiles)
    x = np.ones((rows, layer.in_features), np.float32)
    out = np.empty((rows, layer.out_features), np.float32)
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        layer(x, out)
        taken.append(time.perf_counter() - start)
    return min(taken)
