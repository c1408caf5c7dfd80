"""The C library's heap: what is in use, and giving back what is not.

glibc keeps what was freed in the midst of its heap. A text of 100 KB that is tokenized leaves
megabytes there, each time elsewhere, so a server under mixed load grows for hours though nothing is
lost. ``malloc_trim`` returns those pages; it takes a millisecond for tens of megabytes.
Elsewhere (musl, macOS) nothing is measured and nothing done.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from quire.core.metrics import Samples

TRIM_SECONDS = 30.0


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def heap_bytes() -> tuple[int, int] | None:
    """Return the bytes in use and those kept free, over all arenas; None without glibc.

    Those kept free count as free after they have been given back, until they are used again.
    """
    mallinfo2 = _function("mallinfo2", _Mallinfo2)
    if mallinfo2 is None:
        return None
    info = mallinfo2()
    return info.uordblks + info.hblkhd, info.fordblks


def trim() -> None:
    """Give free pages back to the system."""
    malloc_trim = _function("malloc_trim", ctypes.c_int)
    if malloc_trim is not None:
        malloc_trim(0)


@cache
def _function(name: str, answer: type) -> Any:
    """Return a function of the C library, looked up once, or None where it has none of the name.

    Each ``CDLL`` makes a class of its own, a cycle of 3.5 KB: looked up at each trim, four come a
    minute, and a serving process's collector hardly ever comes to old cycles.
    """
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    function.restype = answer
    return function


class HeapTrimmer:
    """Trims this process's heap now and then, in a thread, and knows what it held.

    Args:
        process: Name of the process, the value of the metric's label.
        seconds: Seconds between two trims.
    """

    def __init__(self, process: str, seconds: float = TRIM_SECONDS) -> None:
        self._process = process
        self._seconds = seconds
        self._stopped = threading.Event()
        self._heap = heap_bytes()
        threading.Thread(target=self._run, name="quire-heap", daemon=True).start()

    def samples(self) -> Samples:
        """Return the heap's state at the last trim by metric stem."""
        if self._heap is None:
            return {}
        stem, labels = "process_heap_bytes", f'process="{self._process}",state='
        used, free = self._heap
        return {f'{stem}{{{labels}"used"}}': used, f'{stem}{{{labels}"free"}}': free}

    def close(self) -> None:
        """Trim no more."""
        self._stopped.set()

    def _run(self) -> None:
        while self._heap is not None and not self._stopped.wait(self._seconds):
            trim()
            self._heap = heap_bytes()
