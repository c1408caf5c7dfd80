"""The C library's heap, held against the resident memory that the system counts."""

from __future__ import annotations

import ctypes
import gc
import time

import pytest

from quire.system import heap
from quire.system.process_usage import resident_bytes

PIECE, COUNT = 8000, 8000  # 61 MiB in pieces too small for maps of their own

pytestmark = pytest.mark.skipif(heap.heap_bytes() is None, reason="the C library is not glibc")


def freed_below_a_piece_in_use():
    """Free ``COUNT`` pieces below one that stays, so that the heap's end cannot come down."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [libc.malloc(PIECE) for _ in range(COUNT)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    before = heap.heap_bytes()
    for piece in pieces[:-1]:
        libc.free(piece)
    return lambda: libc.free(pieces[-1]), before


def test_trimming_gives_back_what_was_freed_in_the_midst():
    freed, given_back = PIECE * (COUNT - 1), 0
    for _ in range(20):  # until the trimmer of no other test's server comes in between
        release, before = freed_below_a_piece_in_use()
        after = heap.heap_bytes()
        assert before[0] - after[0] >= freed and after[1] - before[1] >= 0.9 * freed
        resident = resident_bytes()
        heap.trim()
        given_back = resident - resident_bytes()
        release()
        if given_back > 0.9 * freed:
            break
    assert given_back > 0.9 * freed


def test_looking_and_trimming_leaves_nothing_to_collect():
    """A serving process collects cycles too seldom for two every half a minute."""

    def libraries() -> int:
        return sum(isinstance(thing, ctypes.CDLL) for thing in gc.get_objects())

    heap.heap_bytes()
    heap.trim()
    gc.disable()
    try:
        before = libraries()
        for _ in range(10):
            heap.heap_bytes()
            heap.trim()
        assert libraries() == before
    finally:
        gc.enable()


def test_a_trimmer_trims_and_reports():
    trimmer = heap.HeapTrimmer("engine", seconds=0.01)
    try:
        resident = resident_bytes()
        release, _ = freed_below_a_piece_in_use()
        end = time.monotonic() + 60
        while resident_bytes() > resident + 0.2 * PIECE * COUNT:
            assert time.monotonic() < end
            time.sleep(0.01)
        release()
        samples = trimmer.samples()
        assert set(samples) == {
            'process_heap_bytes{process="engine",state="used"}',
            'process_heap_bytes{process="engine",state="free"}',
        }
        assert all(value > 0 for value in samples.values())
    finally:
        trimmer.close()
