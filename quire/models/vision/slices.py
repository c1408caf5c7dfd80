"""Encoding in slices: what an encoder computes between two looks at who else waits.

A slice is a bounded number of multiplications whatever the size and number of pictures, so that an
engine can go on with its decodes after any of them. What comes out does not depend on how rows are
cut: each row's result is its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
#: Yields after each slice, and returns what all of them give.
Slices = Generator[None, None, T]

#: Multiplications of a slice: about ten milliseconds of two cores.
SLICE_WORK = 2**30
#: Rows of a slice at least: fewer would read weights for longer than they multiply.
MIN_ROWS = 32


def cut_rows(num_rows: int, row_work: int) -> Iterator[slice]:
    """Cut rows into parts of a slice's work each.

    Args:
        num_rows: Of the encoder.
        row_work: Multiplications for one of them.
    """
    step = max(MIN_ROWS, SLICE_WORK // max(row_work, 1))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def finish(slices: Slices[T]) -> T:
    """Run all slices and return what they give."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result
