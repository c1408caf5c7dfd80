"""A real store of Redis' protocol for tests."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.ports import free_ports

redis = pytest.importorskip("redis")


class Store:
    """A store that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports()
        self.folder = folder
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--save", "", "--bind", "127.0.0.1"]
        self.process = subprocess.Popen(
            [*command, "--dir", str(self.folder)], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while not self.answers():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def answers(self) -> bool:
        with redis.Redis.from_url(self.url) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
