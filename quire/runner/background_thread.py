"""Threads that take a core only where compute threads leave one."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

#: How far such a thread steps back where compute threads want its core.
NICENESS = 5
#: How long an engine that ends waits for what such a thread is at.
LAST_SECONDS = 10.0


def step_back() -> None:
    """Have this thread alone run where others leave a core; not everywhere can threads do so."""
    if sys.platform == "linux":
        thread_id = threading.get_native_id()
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, thread_id)
            os.setpriority(os.PRIO_PROCESS, thread_id, min(19, own + NICENESS))
