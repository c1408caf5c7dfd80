"""Taking an address and giving it back."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import httpx2
import pytest

from quire.core.errors import ConfigError
from quire.server.listener import address, bind
from quire.server.server_options import ServerOptions
from tests.server.running import Running


def test_a_taken_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} must be free"):
            bind(ServerOptions(port=port))


def test_no_client_connects_before_the_server_listens():
    with bind(ServerOptions(port=0)) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname(), timeout=60)


def test_an_unknown_host_is_refused():
    with pytest.raises(ConfigError, match="--host"):
        bind(ServerOptions(host="256.0.0.1", port=0))


def test_a_unix_socket_left_behind_is_replaced(tmp_path):
    path = str(tmp_path / "quire.sock")
    bind(ServerOptions(uds=path)).close()
    with bind(ServerOptions(uds=path)) as listener:
        assert address(listener) == f"unix:{path}"
        listener.listen()
        with pytest.raises(ConfigError, match="must not be in use"):
            bind(ServerOptions(uds=path))


def test_a_file_is_no_unix_socket(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="must name a socket"):
        bind(ServerOptions(uds=str(path)))
    assert path.read_text() == "data"


def test_a_path_too_long_for_a_socket_is_told_in_words(tmp_path):
    with pytest.raises(ConfigError, match="AF_UNIX path too long"):
        bind(ServerOptions(uds=str(tmp_path / ("x" * 120))))


def test_files_for_tls_are_read_before_the_model(tmp_path):
    """They were read after it, and a missing one was called a taken address."""
    wrong, missing = tmp_path / "wrong.pem", tmp_path / "missing.pem"
    wrong.write_text("no certificate")
    for path in (wrong, missing):
        with pytest.raises(ConfigError, match="--ssl-certfile and --ssl-keyfile must be readable"):
            bind(ServerOptions(port=0, ssl_certfile=str(path)))


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"port": 70000}, "--port"),
        ({"shutdown_timeout": -1.0}, "--shutdown-timeout"),
        ({"shutdown_timeout": float("inf")}, "--shutdown-timeout"),
        ({"shutdown_timeout": float("nan")}, "--shutdown-timeout"),
        ({"uds": ""}, "--uds"),
        ({"metrics_prefix": "a-b"}, "--metrics-prefix"),
        ({"root_path": "x"}, "--root-path"),
        ({"api_key": ""}, "--api-key"),
        ({"api_key": "two words"}, "--api-key"),
    ],
)
def test_impossible_settings_name_their_flag(settings, flag):
    with pytest.raises(ConfigError, match=flag):
        ServerOptions(**settings)


def ask_two(engine, running):
    """Ask for a streamed and a whole answer, both held after their first token."""
    engine.text, engine.hold_after = "ABC", 1
    running.ask("whole", {"prompt": "a"})
    running.ask("streamed", {"prompt": "a", "stream": True})
    while engine.num_held < 2:
        time.sleep(0.005)


def test_running_requests_finish_before_the_end(engine):
    with Running(engine, timeout=60.0) as running:
        ask_two(engine, running)
        running.begin_to_end()
        engine.released.set()
        running.join()
    assert running.answers["whole"].json()["choices"][0]["text"] == "ABC"
    assert running.answers["streamed"].text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"stop"' in running.answers["streamed"].text
    assert engine.ended == ["finished", "finished"] and engine.stopped


def test_who_comes_while_it_ends_is_told_so(engine):
    """New connections were refused by the operating system, without a word."""
    with Running(engine, timeout=60.0) as running:
        ask_two(engine, running)
        running.begin_to_end()
        for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}):
            refused = httpx2.post(f"{running.url}/v1/completions", json=body, timeout=60)
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        for path in ("/health/ready", "/health", "/ping"):
            assert httpx2.get(running.url + path).status_code == 503
        assert httpx2.get(f"{running.url}/health/live").status_code == 200
        engine.released.set()
        running.join()
    assert running.answers["whole"].status_code == 200
    assert '"finish_reason":"stop"' in running.answers["streamed"].text
    assert engine.ended == ["finished", "finished"], "nothing else was begun"


HUNG = """
import asyncio, threading
from quire.llm.load_state import Loading
from quire.server import lifecycle
from quire.server.listener import bind
from quire.server.server_options import ServerOptions

async def app(scope, receive, send):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await send({"type": "http.response.start", "status": 503, "headers": []})
    await send({"type": "http.response.body", "body": b""})

lifecycle.END_SECONDS = lifecycle.SHUTDOWN_GRACE_SECONDS = 0.2
lifecycle.CANCEL_SECONDS = 0.1
options = ServerOptions(port=0, shutdown_timeout=0)
load = lifecycle.LoadModels(threading.Event().wait, app, Loading())
server = lifecycle.Server(options, load)
lifecycle.handle_signals(server.handle_exit)
listener = bind(options)
listener.listen()
print(listener.getsockname()[1], flush=True)
lifecycle.run_server(server, listener)
"""


def test_a_hung_thread_does_not_keep_a_server():
    """A load that read a FIFO was joined for ever: 24 minutes after SIGTERM it was still there."""
    command = [sys.executable, "-c", HUNG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stderr is not None
        port = int(server.stdout.readline())
        assert httpx2.get(f"http://127.0.0.1:{port}/", timeout=60).status_code == 503
        server.terminate()
        assert server.wait(60) == 1
        told = server.stderr.read().decode()
    assert "[serve] not ended in 0.4 s, so by force; at work: ['MainThread'" in told


def test_late_requests_are_ended_with_words(engine):
    with Running(engine, timeout=0.05) as running:
        ask_two(engine, running)
        running.begin_to_end()
        running.join()
    whole = running.answers["whole"]
    assert whole.status_code == 503
    assert "shutting down" in whole.json()["error"]["message"]
    events = running.answers["streamed"].text.split("\n\n")
    assert '"text":"A"' in events[0]
    assert '"type":"ServiceUnavailableError"' in events[-3] and events[-2] == "data: [DONE]"
