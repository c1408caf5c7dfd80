"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """Have the kernel end this process with the thread that started it, where the kernel can.

    Args:
        parent: Process id of who started this one; when it is gone already, this one ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)
