"""What is refused before a route sees it."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from functools import partial

import httpx2
import pytest

from quire.server.http import protocol as http_protocol
from quire.server.http.protocol import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    HttpProtocol,
)


def exchange(client, data, sent=None):
    """Send bytes, say so; return status and error."""
    address = httpx2.URL(str(client.base_url))
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        connection.sendall(data)
        if sent is not None:
            sent.set()
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert re.search(rb"\r\nx-request-id: [0-9a-f]{32}(\r\n|$)", head), head
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    ("data", "status", "word"),
    [
        (b"NONSENSE\r\n\r\n", 400, "HTTP/1.1"),
        (b"GET /" + b"a" * MAX_URL_BYTES + b" HTTP/1.1\r\n\r\n", 414, "url"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431, "headers"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431, "headers"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 40 * MAX_HEAD_BYTES, 431, "headers"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "transfer"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", 501, "transfer"),
        (b"POST / HTTP/1.1\r\nExpect: 999\r\nContent-Length: 2\r\n\r\n", 417, "expect"),
    ],
)
def test_a_head_that_is_wrong_or_too_large(client, data, status, word, monkeypatch):
    monkeypatch.setattr(http_protocol, "LINGER_SECONDS", 60.0)  # till all is sent
    got, error = exchange(client, data)
    assert got == error["code"] == status
    assert word in error["message"] and error["type"] and error["param"] is None


def test_heads_up_to_the_limits_are_served(client):
    headers = {f"x-{i}": "y" for i in range(MAX_HEADERS - 20)}
    assert client.get("/version", headers=headers).status_code == 200
    assert client.get("/version?" + "q" * (MAX_URL_BYTES - 100)).status_code == 200
    large = {"x-large": "y" * (MAX_HEAD_BYTES - 2000)}
    for _ in range(3):  # each request of a connection is counted anew
        assert client.get("/version", headers=large).status_code == 200


POST = (
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)


@pytest.fixture
def sent():
    """Whether clients have sent all that they will send."""
    return threading.Event()


@pytest.fixture
def impatient(monkeypatch, client, sent):
    """A server that waits for moments only; they begin anew until clients have ``sent`` all.

    A client that has lost its turn for a moment would be late otherwise.
    """
    real_await = HttpProtocol._await

    def await_sent(protocol, seconds, late):
        if not sent.is_set():
            late = partial(await_sent, protocol, seconds, late)
        real_await(protocol, seconds, late)

    monkeypatch.setattr(HttpProtocol, "_await", await_sent)
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.15)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.15)
    return client


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"G", "headers"),
        (b"GET /version HTTP/1.1\r\nA: b\r\n", "headers"),
        (POST % 100, "body"),
        (POST % 100 + b'{"prompt":', "body"),
        (POST.replace(b"content-length: %d", b"transfer-encoding: chunked") + b"1\r\n{", "body"),
    ],
)
def test_a_request_that_does_not_go_on_is_refused(impatient, sent, data, word):
    status, error = exchange(impatient, data, sent)
    assert (status, error["type"]) == (408, "RequestTimeoutError")
    assert word in error["message"]
    sent.clear()
    assert impatient.get("/version").status_code == 200


@pytest.mark.parametrize(
    "data", [b"", b"\r\n", b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"]
)
def test_a_connection_without_a_further_request_is_closed(impatient, sent, data):
    """No request was sent, so no answer is: not to nothing, nor to line ends alone."""
    address = httpx2.URL(str(impatient.base_url))
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        connection.sendall(data)
        answer = b""
        if b"GET" in data:
            answer = connection.recv(1 << 16)
            connection.sendall(b"\r\n")  # begins no request, and ends the kept-alive rest
        sent.set()
        while piece := connection.recv(1 << 16):
            answer += piece
    assert answer.count(b"HTTP/1.1 ") == data.count(b"GET")
    assert b"HTTP/1.1 408" not in answer


def test_a_body_that_keeps_its_pace_is_read(monkeypatch, impatient, sent):
    """However often the body is checked; and time that the server takes does not count."""
    looks, is_late, end = [], HttpProtocol._body_is_late, time.monotonic() + 60

    def look(protocol):
        sent.clear()  # the time for the next piece begins when it has been sent
        is_late(protocol)
        looks.append(protocol)

    monkeypatch.setattr(HttpProtocol, "_body_is_late", look)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.02)
    monkeypatch.setattr(http_protocol, "BODY_BYTES", 1)
    body = json.dumps({"prompt": "x" * 400}).encode()
    address = httpx2.URL(str(impatient.base_url))
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        connection.sendall(POST % len(body))
        for number, start in enumerate(range(0, len(body) - 40, 40)):
            connection.sendall(body[start : start + 40])
            sent.set()
            while len(looks) <= number:
                assert time.monotonic() < end
                time.sleep(0.005)
        connection.sendall(body[start + 40 :])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_many_slow_clients_keep_no_other_out(impatient, sent):
    address = httpx2.URL(str(impatient.base_url))
    slow = [socket.create_connection((address.host, address.port)) for _ in range(200)]
    for connection in slow:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nA: ")
    assert impatient.get("/version").status_code == 200
    sent.set()
    for connection in slow:
        connection.settimeout(60)
        while connection.recv(1 << 16):
            pass
        connection.close()
