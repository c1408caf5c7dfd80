"""What goes wrong around the processes: clients, signals, the disk of the logs."""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
import time

import httpx2
import psutil
import pytest

from benchmarks.robustness import server_state
from tests.preforked import Preforked, children
from tests.robustness.conftest import (
    LONG,
    MEDIUM,
    PATH,
    SHORT,
    Crowd,
    ask,
    assert_nothing_left,
    wait_for,
    whole,
)
from tests.sizes import sized
from tools.serve_process import ROOT


def raw_request(url, body):
    """Return a connection on which a request was sent, and nothing read."""
    address = httpx2.URL(url)
    content = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    connection = socket.create_connection((address.host, address.port), timeout=60)
    connection.sendall(head.encode() + content)
    return connection


def ended(url, reason):
    with httpx2.Client(base_url=url) as client:
        return server_state.counters(client)[f"request_success/{reason}"]


@pytest.mark.parametrize("stream", [False, True])
def test_client_half_closes(crowded_server, stream):
    """Closing its sending side looks on the wire as leaving does, and is taken for it."""
    url = crowded_server.address
    expected, before = whole(url, MEDIUM), ended(url, "abort")
    crowd = Crowd(url, [MEDIUM] * 2)
    engine = crowded_server.engine()
    crowd.catch(engine)
    with raw_request(url, LONG | {"stream": stream, "n": 2}) as connection:
        wait_for(lambda: httpx2.get(f"{url}/health/progress").json()["pending"] == 3)
        connection.shutdown(socket.SHUT_WR)
        wait_for(lambda: httpx2.get(f"{url}/health/progress").json()["pending"] == 2)
        engine.resume()
        wait_for(lambda: ended(url, "abort") == before + 2)
        while connection.recv(1 << 16):
            pass  # what was under way, then the end: no hang
    assert {(e.text, e.reason) for e in crowd.endings()} == {(expected.text, "length")}
    assert_nothing_left(url)


def test_client_reads_nothing(crowded_server):
    """Its request runs to its end; others and the server's memory do not feel it."""
    url = crowded_server.address
    expected = whole(url, LONG)
    process = psutil.Process(crowded_server.popen.pid)
    before = process.memory_info().rss
    deaf = []
    for _ in range(sized(6, 20)):
        deaf.append(raw_request(url, LONG | {"stream": True, "return_token_ids": True}))
    assert ask(url, LONG).text == expected.text
    with httpx2.Client(base_url=url, timeout=60) as client:
        server_state.wait_until_idle(client)
        assert server_state.cache_state(client) == (0, "ok")
    assert process.memory_info().rss - before < 64 * 2**20
    for connection in deaf:
        connection.close()
    assert ask(url, SHORT).reason == "length"


def test_client_sends_half_a_request(start):
    """It holds a connection and nothing else; the end of the server waits for it no longer."""
    server = start("--shutdown-timeout", "1")
    url = server.wait_ready()
    address = httpx2.URL(url)
    with socket.create_connection((address.host, address.port), timeout=60) as slow:
        slow.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n".encode())
        assert ask(url, SHORT).reason == "length"
        slow.sendall(b"Content-Type: application/json\r\n\r\n{")
        assert ask(url, SHORT).reason == "length"
        assert httpx2.get(f"{url}/health/progress").json()["pending"] == 0
        assert server.end() == 0


def test_sigterm_under_load(start):
    """Everything that was taken is answered in full, streamed, whole and queued alike."""
    server = start("--shutdown-timeout", "60")
    url = server.wait_ready()
    expected = whole(url, MEDIUM)
    crowd = Crowd(url, [MEDIUM] * sized(6, 10))  # of which four run at once
    crowd.wait_until_running()
    server.popen.send_signal(signal.SIGTERM)
    assert {(e.text, e.reason) for e in crowd.endings()} == {(expected.text, "length")}
    assert server.end() == 0
    assert "Traceback" not in server.stderr


def test_sigterm_and_no_time(start):
    """What does not end in time gets a typed ending instead."""
    server = start("--shutdown-timeout", "0.2")
    url = server.wait_ready()
    crowd = Crowd(url, [LONG | {"n": 3}] * 12)
    crowd.wait_until_running()
    server.popen.send_signal(signal.SIGTERM)
    endings = crowd.endings()
    for ending in endings:
        assert ending.reason == "length" or ending.error["code"] == 503, ending
    assert any(ending.error for ending in endings)
    assert server.end() == 0
    assert "Traceback" not in server.stderr


def test_sigterm_again_and_again(start):
    """Further signals do not change how it ends, not even in the last moment."""
    server = start()
    url = server.wait_ready()
    crowd = Crowd(url, [MEDIUM] * 4)
    crowd.wait_until_running()
    while server.popen.poll() is None:
        server.popen.send_signal(signal.SIGTERM)
        time.sleep(0.001)
    assert {ending.reason for ending in crowd.endings()} == {"length"}
    assert server.end() == 0
    assert "Traceback" not in server.stderr


def serve_on_socket(arguments, path, stderr, **settings):
    """Start a server that logs to ``stderr``; its address is known beforehand."""
    command = [sys.executable, "-m", "quire.cli.main", "serve", *arguments, "--uds", str(path)]
    return Preforked(command, cwd=ROOT, stderr=stderr, stdout=stderr, **settings)


def can_connect(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def ask_on_socket(path, body):
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), timeout=60) as client:
        answer = client.post(f"http://quire{PATH}", json=body)
        wrong = client.post(f"http://quire{PATH}", json={"prompt": 3})
        assert wrong.status_code == 400
        health = client.get("http://quire/health/ready")
        return answer.json()["choices"][0]["finish_reason"], health.status_code


def test_disk_full_for_logs_from_the_start(arguments, tmp_path):
    """``/dev/full`` answers every write with ENOSPC."""
    path = tmp_path / "quire.sock"
    with open("/dev/full", "wb") as full:
        server = serve_on_socket(arguments, path, full)
    try:
        wait_for(lambda: server.poll() is not None or (can_connect(path) and ready_again(path)))
        assert server.poll() is None, "it ended because it could not log"
        for _ in range(3):
            assert ask_on_socket(path, SHORT) == ("length", 200)
        (lost,) = engines_of(server)
        lost.kill()  # its restart is logged too
        wait_for(lambda: engines_of(server) not in ([], [lost]) and ready_again(path))
        assert ask_on_socket(path, SHORT) == ("length", 200)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def engines_of(server):
    started = children(psutil.Process(server.pid))
    return [one for one in started if any("engine_loop" in word for word in words_of(one))]


def words_of(process):
    try:
        return [process.name(), *process.cmdline()]
    except psutil.Error:  # it has ended meanwhile
        return []


def ready_again(path):
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), timeout=60) as client:
        return client.get("http://quire/health/ready").status_code == 200


def test_disk_fills_up_while_serving(arguments, tmp_path):
    """The log file reaches a size limit in the midst."""
    path, log = tmp_path / "quire.sock", tmp_path / "log"
    with open(log, "wb") as file:
        server = serve_on_socket(arguments, path, file)
    try:
        wait_for(lambda: server.poll() is not None or (can_connect(path) and ready_again(path)))
        assert ask_on_socket(path, SHORT) == ("length", 200)
        # Lines are written after what they are about: of the wait above, and of the socket's.
        probe = b"path=/health/ready status=200"
        wait_for(lambda: b"ready: " in log.read_bytes() and log.read_bytes().count(probe) == 2)
        size = log.stat().st_size
        for process in (psutil.Process(server.pid), *psutil.Process(server.pid).children()):
            process.rlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
        for _ in range(5):
            assert ask_on_socket(path, SHORT) == ("length", 200)
        wait_for(lambda: log.stat().st_size > size)  # a line is written after its answer
        assert log.stat().st_size <= size + 100, "it went on logging until it was full"
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
