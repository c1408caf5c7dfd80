"""Starts the engine's process; imported early, so that it starts before anything else is."""

from __future__ import annotations

from quire.system.child_process import ChildProcess


def start_engine_process() -> ChildProcess:
    """Start a process that imports the engine and waits for the model that it is to load.

    Raises:
        OSError: The process cannot be started.
    """
    return ChildProcess("quire.llm.process.engine_loop:run")
