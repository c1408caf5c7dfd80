"""Ports for programs that are told a number."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

#: Below those that Linux gives out for port 0: one of them might be another program's by the time
#: that its number is used.
_PORTS = range(10000, 30000)
_random = random.SystemRandom()  # tests seed the other one


def free_ports(count: int = 1) -> int:
    """Return the first of ``count`` free ports of the loopback, one after the other.

    Raises:
        OSError: None were found.
    """
    for first in _random.sample(_PORTS, 100):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first
    raise OSError(f"no {count} free ports in {_PORTS}")
