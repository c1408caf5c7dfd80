"""``quire serve`` before its model is there: it lives, is not ready, and says when to come back."""

from __future__ import annotations

import contextlib
import signal
import socket
import tempfile
from pathlib import Path

import httpx2
import psutil
import pytest

from quire.llm.load_state import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, Loading
from tests.cli.held_engines import Hold, wait_stopped
from tests.server.browser import missing, start_browser
from tests.server.websocket_client import Client, Refused
from tests.servers import start_server
from tools.random_checkpoint import PRESETS, random_checkpoint


@pytest.fixture(scope="module")
def arguments(tmp_path_factory, device):
    """A tiny checkpoint and the settings that fit it."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(folder, PRESETS["tiny-llama"])
    return [str(folder), "--device", device, "--memory", "32MiB", "--threads", "1"]


class Held:
    """A server whose engine is stopped before it loads."""

    def __init__(self, arguments, **environment):
        self._folder = tempfile.TemporaryDirectory()
        hold = Hold(Path(self._folder.name))
        hold.begin()
        self.process = start_server(arguments, **hold.environment, **environment)
        self.url = self.process.wait_listening()
        self.engine = wait_stopped(self.process)
        assert "ready: " not in self.process.stderr

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with contextlib.suppress(psutil.Error):
            self.engine.resume()  # it may be stopped before it can notice that its server ends
        self.process.__exit__()
        self._folder.cleanup()


def test_while_it_loads_it_lives_and_is_not_ready(arguments):
    with Held(arguments) as held, httpx2.Client(base_url=held.url, timeout=60) as client:
        assert client.get("/health/live").status_code == 200
        assert set(client.get("/health/progress").json()) == {
            "loading_seconds",
            "loaded_bytes",
            "total_bytes",
        }
        assert "quire:model_load_progress_perc{" in client.get("/metrics").text
        body = {"prompt": "a", "max_tokens": 1}
        for answer in (
            *(
                client.get(path)
                for path in ("/health", "/health/ready", "/ping", "/v1/models", "/api/tags")
            ),
            client.post("/", json={"inputs": "a"}),
            client.post("/v1/completions", json=body),
            client.post("/v1/completions", json={**body, "stream": True}),
        ):
            assert answer.status_code == 503, answer.url
            assert 1 <= int(answer.headers["retry-after"]) <= MAX_RETRY_SECONDS
            assert "is not loaded yet" in answer.text
            assert answer.headers["x-request-id"]
        answer = client.post("/v1/messages", json=body)
        assert answer.status_code == 503 and answer.json()["error"]["type"] == "overloaded_error"
        assert answer.headers["request-id"] and answer.headers["retry-after"]
        assert "<title>Quire</title>" in client.get("/").text
        assert client.get("/playground/page.js").status_code == 200
        with pytest.raises(Refused) as refused:
            Client(held.url, "/v1/completions")
        assert refused.value.args[0] == 503
        assert client.get("/health", headers={"host": "evil.example"}).status_code == 403
        idle = socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)
        held.engine.resume()
        held.process.wait_ready()
        with idle:  # connected before, asks after
            idle.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert client.get("/health/ready").status_code == 200
        forwarded = {"x-forwarded-for": "192.0.2.7"}
        assert client.post("/v1/completions", json=body, headers=forwarded).status_code == 200
        assert held.process.end() == 0
        assert "Traceback" not in held.process.stderr
        assert "192.0.2.7" in held.process.stderr, "the log names the proxy's client"


def test_the_page_waits_for_the_model(arguments, tmp_path):
    if missing():
        pytest.skip(f"not installed: {missing()}")
    with Held(arguments) as held, start_browser(tmp_path) as browser:
        browser.open(held.url)
        browser.wait("document.querySelector('#notice')?.innerText.includes('is not loaded yet')")
        browser.wait("/Try again in [0-9]+ s/.test(document.querySelector('#notice').innerText)")
        held.engine.resume()
        held.process.wait_ready()
        browser.wait("document.querySelector('#model').value", MAX_RETRY_SECONDS)
        assert not browser.run("return document.querySelector('#notice').checkVisibility()")


def test_keys_hold_from_the_beginning(arguments):
    with Held(arguments, QUIRE_API_KEY="k") as held:
        assert httpx2.get(f"{held.url}/health/live").status_code == 200
        assert httpx2.get(held.url).status_code == 200
        assert httpx2.get(f"{held.url}/v1/models").status_code == 401
        assert httpx2.get(f"{held.url}/metrics").status_code == 401
        key = {"authorization": "Bearer k"}
        assert httpx2.get(f"{held.url}/v1/models", headers=key).status_code == 503


def test_a_unix_socket_too(arguments, tmp_path):
    path = tmp_path / "quire.sock"
    with Held([*arguments, "--uds", str(path)]) as held:
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://quire/health/live").status_code == 200
            assert client.get("http://quire/health/ready").status_code == 503
        assert held.process.end() == 0
        assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_loads_ends_it_and_its_engine(arguments, number):
    with Held(arguments) as held:
        assert held.process.end(number) == 0, held.process.stderr
        held.engine.wait(60)
        assert "Traceback" not in held.process.stderr
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{held.url}/health/live")


def test_an_engine_that_dies_while_it_loads_is_an_error_of_the_command(arguments):
    with Held(arguments) as held:
        held.engine.kill()
        assert held.process.popen.wait(60) == 1
        held.process.end()
        assert "quire: [engine] its process has died (killed by SIGKILL)" in held.process.stderr
        assert "Traceback" not in held.process.stderr


def test_when_to_come_back_follows_the_rate_of_loading():
    now = 100.0
    loading = Loading(lambda: now)
    assert loading.retry_after() == FIRST_RETRY_SECONDS and loading.part == 0.0
    loading.advance(10, 100)
    assert loading.retry_after() == FIRST_RETRY_SECONDS, "one report has no rate"
    now += 2.0
    loading.advance(30, 100)  # 10 bytes a second, 70 to go
    assert loading.retry_after() == 7 and loading.part == 0.3
    loading.advance(100, 100)
    assert loading.retry_after() == 1
    loading.advance(31, 10**9)
    assert loading.retry_after() == MAX_RETRY_SECONDS
    loading.begin()
    assert loading.retry_after() == FIRST_RETRY_SECONDS and loading.seconds == 0.0


def test_blocks_of_keys_apart_need_keys(arguments):
    flags = ["--prefix-cache-isolation", "key"]
    process = start_server([*arguments, *flags], QUIRE_API_KEY="")
    assert process.popen.wait(60) == 1
    process.end()
    assert "--prefix-cache-isolation key must come with API keys" in process.stderr
