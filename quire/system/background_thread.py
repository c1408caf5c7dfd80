"""Background threads, which take a core only where compute threads leave one."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

#: Niceness of such a thread, by which compute threads come before it.
NICENESS = 5
#: Seconds that an engine at its end waits for such a thread.
LAST_SECONDS = 10.0


def step_back() -> None:
    """Lower the priority of this thread alone, where the system has priorities of threads."""
    if sys.platform == "linux":
        thread_id = threading.get_native_id()
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, thread_id)
            os.setpriority(os.PRIO_PROCESS, thread_id, min(19, own + NICENESS))
