"""A running ``quire serve`` for tests and load tools: its address, its engine, its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
_READY = re.compile(r"ready: (\S+) serves .+ after [\d.]+ s")
_LISTENING = re.compile(r"loading: (\S+) answers")
START_SECONDS = 120.0


class ServeProcess:
    """``quire serve`` in a process of its own, on a free loopback port unless told otherwise.

    Args:
        arguments: Those after ``quire serve``.
        command: What ``python -m`` runs with them.
        pass_on: Called with each line that it writes to stderr.
        spawn: Starts a process, as ``subprocess.Popen`` does.
        **environment: Added to this process's.

    Attributes:
        popen: The process.
        lines: Of its stderr so far.
        address: ``http://...`` once it listens.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        command: Sequence[str] = ("quire.cli.main", "serve"),
        pass_on: Callable[[str], Any] | None = None,
        spawn: Callable[..., Any] = subprocess.Popen,
        **environment: str,
    ) -> None:
        if "--port" not in arguments and "--uds" not in arguments:
            arguments = [*arguments, "--port", "0"]
        self.popen = spawn(
            [sys.executable, "-m", *command, *arguments],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.lines: list[str] = []
        self.address = ""
        self._pass_on = pass_on
        self._listening, self._ready = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line)
            if self._pass_on is not None:
                self._pass_on(line)
            for pattern, event in ((_LISTENING, self._listening), (_READY, self._ready)):
                if found := pattern.search(line):
                    self.address = found[1]
                    event.set()
        self._listening.set()
        self._ready.set()

    @property
    def stderr(self) -> str:
        """What it has written so far."""
        return "".join(self.lines)

    def wait_listening(self) -> str:
        """Wait until it says where it listens; return the address."""
        assert self._listening.wait(START_SECONDS) and self.address, self.stderr
        return self.address

    def wait_ready(self) -> str:
        """Wait until it serves; return its address."""
        assert self._ready.wait(START_SECONDS) and "ready: " in self.stderr, self.stderr
        return self.address

    def engines(self) -> list[psutil.Process]:
        """Return the engines' processes, the oldest first."""
        found = []
        for child in psutil.Process(self.popen.pid).children():
            with suppress(psutil.Error):  # it has ended meanwhile
                if any("engine_loop" in word for word in (child.name(), *child.cmdline())):
                    found.append(child)
        return sorted(found, key=lambda child: child.create_time())

    def engine(self) -> psutil.Process:
        """Return the process of the only engine."""
        (engine,) = self.engines()
        return engine

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal unless it has ended; return its exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        code = self.popen.wait(60)
        self._reader.join(10)
        assert self.popen.stderr is not None
        self.popen.stderr.close()
        return code

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.popen.returncode is None:
            self.popen.kill()
            self.end()
