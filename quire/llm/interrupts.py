"""Ctrl-C between steps: an exception in the middle of one would break the engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collect_interrupts() -> Iterator[list[int]]:
    """Yield a list that every Ctrl-C is put in, instead of raising KeyboardInterrupt.

    Only the main thread is ever interrupted; in another one the list stays empty.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
