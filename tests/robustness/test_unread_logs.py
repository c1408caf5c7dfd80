"""A log that no process reads: the pipe of stderr is full, the server serves on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.ports import free_ports
from tests.preforked import Preforked
from tests.sizes import sized

ROOT = Path(__file__).parents[2]
#: Each makes a line of 4 KB; a pipe takes 64 KiB and 1 MiB may wait.
NUM_REQUESTS = sized(400, 1500)


@pytest.fixture
def unread(device):
    """A server whose stderr is a pipe that no process reads; and its URL."""
    port = free_ports()
    command = [sys.executable, "-m", "quire.cli.main", "serve", "--port", str(port)]
    command += ["--device", device, "--memory", "64MiB", "--threads", "1"]
    popen = Preforked(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 120
        ready = 0
        while ready != 200:
            assert time.monotonic() < end and popen.poll() is None
            with suppress(httpx2.TransportError):
                ready = httpx2.get(f"{url}/health/ready").status_code
            time.sleep(0.02)
        yield popen, url
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.wait(60)
        popen.stderr.close()


def dropped(client):
    text = client.get("/metrics").text
    values = re.findall(r"log_lines_dropped_total{[^}]*} ([\d.]+)", text)
    assert len(values) == 2, "of both processes"
    return sum(map(float, values))


def test_a_full_pipe_of_stderr_freezes_no_process(unread):
    """The server stopped in the midst of a line, and its health with it."""
    popen, url = unread
    body = {"prompt": "a", "max_tokens": 1}
    with httpx2.Client(base_url=url, timeout=60) as client:
        path = "/" + "x" * 4000  # each makes a line of its size
        for _ in range(NUM_REQUESTS):
            assert client.get(path).status_code == 404
        assert dropped(client) > 0
        assert client.get("/health/ready").status_code == 200
        assert client.post("/v1/completions", json=body).status_code == 200
    popen.terminate()
    assert popen.wait(60) == 0, "its end waits for the reader a moment only"
    read = popen.stderr.read().decode()
    # The engine's first lines may come before: each process writes its own.
    assert re.search("^loading: ", read, re.M) and "ready: " in read
