"""The number of rows from which on linears take matrix tiles, measured once for a processor.

Never changes a bit of a result (``native/runtime/matrix_rows.h``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np

from quire.kernels.cpu import measured_once
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.matrix_forms import (
    COLUMNS,
    bfloat16_sample,
    form_number,
    quantized_forms,
    sample_of,
)
from quire.kernels.cpu.native import native

BFLOAT16 = "bfloat16"
#: What else is multiplied as bfloat16 is.
LIKE_BFLOAT16 = "E4M3"
NAME, KEYS = "rows_for_tiles", (*quantized_forms(), BFLOAT16)
#: Numbers of rows that are tried.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
ROUNDS = 4
#: Rows that no product has: all go without tiles.
NEVER = 1 << 30


def choose_matrix_rows() -> None:
    """Set what was measured on this processor, now where it never was; nothing without AMX."""
    if native.isa() != "amx":
        return
    found = measured_once.remembered(NAME, KEYS)
    rows = dict(zip(KEYS, map(int, found), strict=True)) if found else measure()
    if found is None:
        measured_once.remember(NAME, dict(rows))
    use(rows)


def use(rows: Mapping[str, int]) -> None:
    """Take tiles from these numbers of rows on.

    Args:
        rows: Numbers of rows by the names of :data:`KEYS`.
    """
    by_form, _ = native.matrix_rows()
    for name, number in _numbers().items():
        by_form[number] = rows[name]
    native.set_matrix_rows(by_form, rows[BFLOAT16])


def measure(inputs: int = 1024, outputs: int = 1024) -> dict[str, int]:
    """Return the rows from which tiles are faster, for weights of each form and bfloat16 ones.

    Takes ROUNDS products of each number of rows, form and kernel, and as many before their times
    are taken, all in a second or two. Should this processor's tiles have other bits
    than its vectors, then bytes never go in tiles, and bfloat16 always: a row's bits must not
    depend on the rows next to it.
    """
    before = native.matrix_rows()
    try:
        found = {
            name: _measure(sample_of(form, outputs, inputs), 1 if name == LIKE_BFLOAT16 else NEVER)
            for name, form in quantized_forms(outputs, inputs).items()
        }
        return {**found, BFLOAT16: _measure(bfloat16_sample(outputs, inputs), 1)}
    finally:
        native.set_matrix_rows(*before)


def range_of_rows() -> tuple[str, str]:
    """Return from how many rows on quantized weights take tiles, and bfloat16 ones, as text.

    Forms differ: it is the least and the most that any of them takes. Empty where none ever does.
    """
    by_form, bfloat16 = native.matrix_rows()
    numbers = [number for name, number in _numbers().items() if name != LIKE_BFLOAT16]
    taken = sorted({by_form[number] for number in numbers} - {NEVER})
    ends = dict.fromkeys(map(str, (taken[0], taken[-1]) if taken else ()))
    return " to ".join(ends), str(bfloat16) if bfloat16 < NEVER else ""


def agree(product: Callable[[bool], np.ndarray]) -> bool:
    """Return whether the product, told to take tiles or not, has the same bits."""
    return product(True).tobytes() == product(False).tobytes()


def best_rows(seconds: Callable[[int, bool], float]) -> int:
    """Return the one of :data:`ROWS`, or NEVER, from which on tiles gain most over vectors.

    Gains are ratios, multiplied over all numbers of rows: one that other work spoiled does not keep
    the others from tiles. Both kernels are tried in turn, so that it slows neither alone.

    Args:
        seconds: Function of a number of rows and of whether they take tiles, called ROUNDS times
            for each.
    """
    best, most, gain = NEVER, 0.0, 0.0
    for rows in reversed(ROWS):
        taken = [(seconds(rows, True), seconds(rows, False)) for _ in range(ROUNDS)]
        tiles, vectors = (min(times) for times in zip(*taken, strict=True))
        gain += math.log(vectors / tiles)
        if gain >= most:
            best, most = rows, gain
    return best


@cache
def _numbers() -> dict[str, int]:
    """Return the number that the native module has for each of the forms."""
    layers = {name: sample_of(form, 32, COLUMNS) for name, form in quantized_forms().items()}
    numbers = {name: form_number(layer) for name, layer in layers.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _measure(layer: CpuLinear, otherwise: int) -> int:
    return best_rows(partial(_time, layer)) if agree(partial(_product, layer)) else otherwise


def use_tiles(tiles: bool) -> None:
    least = 1 if tiles else NEVER
    native.set_matrix_rows([least] * len(native.matrix_rows()[0]), least)


def _product(layer: CpuLinear, tiles: bool) -> np.ndarray:
    """Multiply rows from large to so small that their products are denormal or nothing."""
    use_tiles(tiles)
    x = np.random.default_rng(1).standard_normal((ROWS[-1], layer.in_features), np.float32)
    return layer(x * np.logspace(3, -42, len(x), dtype=np.float32)[:, None])


def _time(layer: CpuLinear, rows: int, tiles: bool) -> float:
    use_tiles(tiles)
    x = np.ones((rows, layer.in_features), np.float32)
    out = np.empty((rows, layer.out_features), np.float32)
    layer(x, out)
    start = time.perf_counter()
    layer(x, out)
    return time.perf_counter() - start
