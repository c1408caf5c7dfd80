"""Threads in which grammars advance, so that a slow one delays no step; they draw nothing.

llguidance computes without the interpreter's lock. Grammars that were slow before have a thread of
their own, which yields to others: they wait for one another, and no step waits for them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from quire.system.log import get_logger

log = get_logger(__name__)

#: Seconds of computing for a mask from which its grammar counts as slow from then on.
SLOW_SECONDS = 0.005
#: Seconds that a step waits for grammars that are not slow: for each, and in addition. A usual mask
#: takes 0.05 ms (llguidance's README); a row without its mask by then sits out the step.
SECONDS_EACH = 0.0005
SECONDS_BESIDES = 0.003
#: Seconds that a step waits when it delays no other request.
SECONDS_ALONE = 0.25
#: Threads for grammars not known to be slow, so that the first slow mask delays half of them.
NUM_THREADS = 2
#: Bytes of a thread's stack, the same as for the thread that compiles grammars.
STACK_BYTES = 16 * 2**20
#: Niceness of the thread for slow grammars.
NICENESS = 10


class MaskJob(Protocol):
    """Work on one grammar, whose duration is unknown.

    Attributes:
        finished: Event that is set at its end.
    """

    finished: threading.Event

    def run(self) -> None:
        """Do the work; raise nothing."""
        ...


class MaskThreads:
    """A few threads, started when they are needed."""

    def __init__(self) -> None:
        self._queues: dict[bool, SimpleQueue[MaskJob | None]] = {}

    def submit(self, job: MaskJob, *, slow: bool) -> None:
        """Run ``job`` after other jobs of its kind.

        Raises:
            RuntimeError: No thread runs, and none could be started; the next call tries again.
        """
        queue = self._queues.get(slow)
        if queue is None:
            queue = self._queues[slow] = _start(slow)
        queue.put(job)

    def close(self) -> None:
        """End the threads after the jobs in their queues."""
        for queue in self._queues.values():
            for _ in range(NUM_THREADS):
                queue.put(None)
        self._queues.clear()


def wait(jobs: Sequence[MaskJob], *, alone: bool) -> None:
    """Wait until jobs are finished, but not for long.

    Args:
        jobs: Jobs of grammars that have not been slow.
        alone: Whether no other request is delayed.
    """
    seconds = SECONDS_ALONE if alone else SECONDS_BESIDES + SECONDS_EACH * len(jobs)
    end = time.monotonic() + seconds
    for job in jobs:
        if not job.finished.wait(max(0.0, end - time.monotonic())):
            return


def _start(slow: bool) -> SimpleQueue[MaskJob | None]:
    """Start the threads of a kind, at least one, and return their queue."""
    queue: SimpleQueue[MaskJob | None] = SimpleQueue()
    name = "quire-slow-masks" if slow else "quire-masks"
    default = threading.stack_size(STACK_BYTES)
    try:
        for number in range(1 if slow else NUM_THREADS):
            thread = threading.Thread(target=_run, args=(queue, slow), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit of threads, or its memory
                if number == 0:
                    raise
                log.warning(
                    "[%s] %d threads do the work of %d: %s", name, number, NUM_THREADS, error
                )
                break
    finally:
        threading.stack_size(default)
    return queue


def _run(queue: SimpleQueue[MaskJob | None], slow: bool) -> None:
    if slow and sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    while (job := queue.get()) is not None:
        job.run()
        del job  # while waiting it would keep a request's grammar
