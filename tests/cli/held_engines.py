"""Engines of a server that stop before they load, until they are let go.

What a server says meanwhile can be asked in any time: nothing has to be quick.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil

from tools.serve_process import ROOT, ServeProcess


class Hold:
    """Stops each engine that starts between :meth:`begin` and :meth:`end`.

    Args:
        folder: Where it may have a file.

    Attributes:
        environment: Variables to start the server with.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hold"
        path = f"{Path(__file__).parent / 'holding'}:{ROOT}"
        self.environment = {"HOLD": str(self._file), "PYTHONPATH": path}

    def begin(self) -> None:
        """Stop engines that start from now on."""
        self._file.touch()

    def end(self) -> None:
        """Stop no further ones; those that are stopped stay so."""
        self._file.unlink()


def wait_stopped(server: ServeProcess, seconds: float = 60.0) -> psutil.Process:
    """Return the only engine once it is stopped."""
    end = time.monotonic() + seconds
    while True:
        with suppress(ValueError, psutil.Error):  # not there yet
            engine = server.engine()
            if engine.status() == psutil.STATUS_STOPPED:
                return engine
        assert time.monotonic() < end and server.popen.poll() is None, server.stderr
        time.sleep(0.01)
