"""Keys that are typed while an answer is written: not echoed into it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

#: They end a process at once; the terminal must be as it was by then.
_ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT")


@contextlib.contextmanager
def silent_input() -> Iterator[Callable[[], None]]:
    """Turn off the terminal's echo; yield a function that discards the keys typed so far.

    The terminal is as it was afterwards, also after an exception or a signal that ends the process.
    Lines that were typed meanwhile are the next ones that are read. Where stdin is not a terminal
    nothing changes.
    """
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, termios.error):
        yield lambda: None
        return

    def restore() -> None:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    silent = termios.tcgetattr(descriptor)
    silent[3] &= ~(termios.ECHO | termios.ECHONL)
    with _before_the_end(restore):
        try:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
            yield lambda: termios.tcflush(descriptor, termios.TCIFLUSH)
        finally:
            restore()


@contextlib.contextmanager
def _before_the_end(restore: Callable[[], None]) -> Iterator[None]:
    """Call ``restore`` when a signal is about to end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found: list[signal.Signals] = []

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)
            found.append(number)
    try:
        yield
    finally:
        for number in found:
            signal.signal(number, signal.SIG_DFL)
