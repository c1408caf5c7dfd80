"""A machine that computes for a server elsewhere: it has no port, and ends by a signal."""

from __future__ import annotations

import signal
from types import FrameType

from quire.core.config import EngineConfig
from quire.models.hub import resolve_model
from quire.runner.parallel.static_nodes import run_node


def compute_for_driver(config: EngineConfig) -> None:
    """Run this machine's ranks until SIGTERM or SIGINT.

    Raises:
        QuireError: There is no such model or driver, or a rank could not be what it is to be.
    """
    folder = resolve_model(config.model.model, config.model.revision)
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run_node(config.parallel, folder, lambda: ending)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
