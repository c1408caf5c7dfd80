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

    Takes a fraction of a second on the threads the kernels have, with weights of some MiB.
    """
    before = native.matrix_rows()
    codes = np.ones((outputs, inputs), np.uint8)
    scales = np.ones((outputs, inputs // 32), np.float16)
    layers = (
        CpuLinear([QuantizedTensor("w", bits=4, group_size=32, codes=codes, scales=scales)]),
        CpuLinear([HostTensor("w", "bfloat16", np.full((outputs, inputs), 0x3F80, np.uint16))]),
    )
    try:
        quantized, bfloat16 = (least_rows(partial(_time, layer)) for layer in layers)
    finally:
        native.set_matrix_rows(*before)
    return quantized, bfloat16


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


def _time(layer: CpuLinear, rows: int, tiles: bool) -> float:
    native.set_matrix_rows(*(2 * (1 if tiles else NEVER,)))
    x = np.ones((rows, layer.in_features), np.float32)
    out = np.empty((rows, layer.out_features), np.float32)
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        layer(x, out)
        taken.append(time.perf_counter() - start)
    return min(taken)
