"""Encoding in slices: what an encoder computes between two looks at the clock.

A slice is a bounded number of multiplications, whatever the size and number of pictures: a small
part of a step of a decoder as large as the encoder. So an engine can run slices for about as long
as a step takes, and then continue its decodes. The results do not depend on how rows are cut: each
row's result is its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

from quire.kernels.backend import Array
from quire.layers.norm import Norm

T = TypeVar("T")
#: Yields after each slice, and returns what all of them give.
Slices = Generator[None, None, T]

#: Multiplications of a slice: one or two milliseconds of two cores. Slices of eight times as many
#: encode no faster.
SLICE_WORK = 2**27
#: Rows of a slice at least: fewer would read weights for longer than they multiply.
MIN_ROWS = 32
#: An element of a norm takes as long as that many multiplications.
NORM_WORK = 64


def cut_rows(num_rows: int, row_work: int) -> Iterator[slice]:
    """Cut rows into parts of a slice's work each.

    Args:
        num_rows: Rows of the encoder.
        row_work: Multiplications for one row.
    """
    step = max(MIN_ROWS, SLICE_WORK // max(row_work, 1))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def norm_in_place(norm: Norm, rows: Array) -> Slices[None]:
    """Norm rows (T, W)."""
    for part in cut_rows(rows.shape[0], NORM_WORK * rows.shape[1]):
        norm(rows[part], rows[part])
        yield


def finish(slices: Slices[T]) -> T:
    """Run all slices and return what they give."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result
