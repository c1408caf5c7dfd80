"""A stderr whose reader may be slow or stopped: writing to it never waits, what is too much is
dropped and counted.

A pipe without a reader takes 64 KiB, then the next line of the log would stop the process that
writes it, with everything it serves.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
import time
from collections import deque
from typing import TextIO

#: Most characters that wait to be written.
MAX_WAITING = 1 << 20
#: Bytes written at once, about.
WRITE_BYTES = 1 << 16
#: Seconds for which the end of the process waits for a reader that takes nothing.
FLUSH_SECONDS = 1.0


class BackgroundStream(io.TextIOBase):
    """A text stream that a thread writes to a file descriptor.

    Args:
        descriptor: The file descriptor that is written to.
        max_waiting: Characters that may wait; a text that would exceed them is dropped whole.

    Attributes:
        num_dropped: Number of lines that were dropped.
    """

    def __init__(self, descriptor: int, max_waiting: int = MAX_WAITING) -> None:
        self._descriptor = descriptor
        self._max_waiting = max_waiting
        self._texts: deque[str] = deque()
        self._num_waiting = 0
        self._num_told = 0  # of the dropped lines
        self._changed = threading.Condition()
        self._busy = False
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="quire-stderr", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the bytes."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Way to write what UTF-8 cannot hold: escaped."""
        return "backslashreplace"

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor: for crash handlers, which cannot use a thread."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether people read along."""
        return os.isatty(self._descriptor)

    def write(self, text: str, /) -> int:
        """Take a text, or drop it; never wait.

        Raises:
            TypeError: The argument is not a text; so click finds out what a stream takes.
        """
        if not isinstance(text, str):
            raise TypeError(f"[log] a text must be str; got {type(text).__name__}.")
        with self._changed:
            if self._num_waiting + len(text) > self._max_waiting:
                self.num_dropped += max(1, text.count("\n"))
            elif text:
                self._texts.append(text)
                self._num_waiting += len(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Return at once: the thread writes as fast as the reader reads."""

    def wait_written(self, seconds: float) -> None:
        """Wait until nothing waits, but no longer than that where the reader takes nothing."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._texts or self._busy:
                left = end - time.monotonic()
                if left <= 0 and not select.select([], [self._descriptor], [], 0)[1]:
                    return
                self._changed.wait(max(left, 0.05))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._texts and self.num_dropped == self._num_told:
                    self._changed.wait()
                data = self._take()
                self._busy = True
            self._write_out(data)

    def _take(self) -> bytes:
        """Return what comes next, and at its end how much was dropped there."""
        found = ""
        while self._texts and len(found) < WRITE_BYTES:
            found += self._texts.popleft()
        self._num_waiting -= len(found)
        lost = self.num_dropped - self._num_told
        if lost and not self._texts:
            self._num_told = self.num_dropped
            found += f"[log] {lost} lines were dropped here: the reader was too slow.\n"
        return found.encode("utf-8", "backslashreplace")

    def _write_out(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process has made it non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError:  # the reader is gone, or the disk is full
                with self._changed:
                    self.num_dropped += max(1, data.count(b"\n"))
                    self._num_told = self.num_dropped  # there is no reader to tell
                return


def use_background_stderr() -> None:
    """Make ``sys.stderr`` never wait, in a process that must not; a second call does nothing.

    What waits when the process ends is written then; it is lost if no reader takes it in a second.
    """
    stream: TextIO | BackgroundStream = sys.stderr
    if isinstance(stream, BackgroundStream):
        return
    try:
        stream.flush()
        background = BackgroundStream(stream.fileno())
    except (OSError, ValueError, AttributeError):  # no file, as in some tests: nothing waits there
        return
    sys.stderr = background
    atexit.register(background.wait_written, FLUSH_SECONDS)


def wait_until_logged() -> None:
    """Wait until stderr has what was written to it.

    At most :data:`FLUSH_SECONDS` for a reader that reads nothing. For a process that may be killed
    next.
    """
    stream = sys.stderr
    if isinstance(stream, BackgroundStream):
        stream.wait_written(FLUSH_SECONDS)


def num_dropped_lines() -> int:
    """Return how many lines this process has not written to its stderr."""
    stream = sys.stderr
    return stream.num_dropped if isinstance(stream, BackgroundStream) else 0
