"""A machine that computes for a server elsewhere: it has no port, and ends by a signal."""

from __future__ import annotations

import signal
from types import FrameType

from quire.llm.replicas.node import run_engines
from quire.runner.ranks.static_nodes import run_node
from quire.settings.config import EngineConfig
from quire.store.hub import resolve_model
from quire.system.log import LogFormat
from quire.system.machine import read_machine


def compute_for_server(config: EngineConfig, log_format: LogFormat) -> None:
    """Run this machine's ranks or engines until SIGTERM or SIGINT.

    Args:
        config: The settings, which say which ranks or engines these are.
        log_format: Format of the engines' log lines.

    Raises:
        QuireError: The model or the server does not exist, or an engine or rank cannot do its part.
    """
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if config.parallel.deals_engines:
            run_engines(config, read_machine(), log_format, lambda: ending)
        else:
            folder = resolve_model(config.model.model, config.model.revision)
            run_node(config.parallel, folder, lambda: ending)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
