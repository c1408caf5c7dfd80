"""The keys of a terminal, one at a time, and the end by a signal; it draws nothing."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class EndSignal:
    """SIGINT, SIGTERM or SIGHUP, once one has arrived.

    Attributes:
        exit_code: Exit code as shells report it; None until then.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None


class Keys:
    """Keys that were pressed on standard input.

    Args:
        descriptor: The terminal's file descriptor; None without a terminal.
        wake: A file descriptor that becomes readable when a reading is there.
    """

    def __init__(self, descriptor: int | None, wake: int) -> None:
        self._descriptor, self._wake = descriptor, wake

    def wait(self, seconds: float) -> bytes:
        """Return what was pressed, once a key was or a reading is there, or after ``seconds``."""
        watched = [self._wake] if self._descriptor is None else [self._wake, self._descriptor]
        readable, _, _ = select.select(watched, [], [], seconds)
        if self._wake in readable:
            os.read(self._wake, 4096)
        if self._descriptor is None or self._descriptor not in readable:
            return b""
        pressed = os.read(self._descriptor, 64)
        if not pressed:
            self._descriptor = None  # The terminal's other side has gone.
        return pressed


@contextmanager
def keys_at_once(wake: int) -> Iterator[Keys]:
    """Yield the keys as they are pressed, not shown; afterwards the terminal is as it was."""
    if not sys.stdin.isatty():
        yield Keys(None, wake)
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        # Ctrl-Z and Ctrl-\\ would leave the view's screen to the shell. Ctrl-C is a key, too: what
        # its signal raises is lost where it meets a finalizer.
        mode = termios.tcgetattr(descriptor)
        mode[tty.LFLAG] &= ~termios.ISIG
        termios.tcsetattr(descriptor, termios.TCSANOW, mode)
        yield Keys(descriptor, wake)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def signals_noted() -> Iterator[EndSignal]:
    """Only note SIGINT, SIGTERM and SIGHUP, so that the terminal is restored first.

    Nothing is raised: an exception that meets a finalizer is printed and lost.
    """
    noted = EndSignal()

    def end(number: int, frame: FrameType | None) -> None:
        noted.exit_code = 128 + number

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield noted
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
