"""What is refused before a route sees it."""

from __future__ import annotations

import json
import re
import socket
import time

import httpx2
import pytest

from quire.server.http import protocol as http_protocol
from quire.server.http.protocol import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES


def exchange(client, data):
    """Send bytes; return status and error."""
    address = httpx2.URL(str(client.base_url))
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        connection.sendall(data)
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
    ],
)
def test_a_head_that_is_wrong_or_too_large(client, data, status, word):
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
def impatient(monkeypatch, client):
    """A server that waits for moments only."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.3)
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
def test_a_request_that_does_not_go_on_is_refused(impatient, data, word):
    status, error = exchange(impatient, data)
    assert (status, error["type"]) == (408, "RequestTimeoutError")
    assert word in error["message"]
    assert impatient.get("/version").status_code == 200


@pytest.mark.parametrize(
    "data", [b"", b"\r\n", b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"]
)
def test_a_connection_without_a_further_request_is_closed(impatient, data):
    """Nobody asked anything, so nobody is answered: not to nothing, nor to line ends alone."""
    address = httpx2.URL(str(impatient.base_url))
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        if b"GET" in data:
            answer = connection.recv(1 << 16)
            connection.sendall(b"\r\n")  # begins no request, and ends the kept-alive rest
        while piece := connection.recv(1 << 16):
            answer += piece
    assert answer.count(b"HTTP/1.1 ") == data.count(b"GET")
    assert b"HTTP/1.1 408" not in answer


def test_a_body_that_keeps_its_pace_is_read(monkeypatch, impatient):
    """However often somebody looks; and time that the server takes is nobody's fault."""
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(http_protocol, "BODY_BYTES", 1)
    body = json.dumps({"prompt": "x" * 400}).encode()
    address = httpx2.URL(str(impatient.base_url))
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        connection.sendall(POST % len(body))
        for start in range(0, len(body), 40):
            connection.sendall(body[start : start + 40])
            time.sleep(0.05)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_many_slow_clients_keep_nobody_out(impatient):
    address = httpx2.URL(str(impatient.base_url))
    slow = [socket.create_connection((address.host, address.port)) for _ in range(200)]
    for connection in slow:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nA: ")
    assert impatient.get("/version").status_code == 200
    for connection in slow:
        connection.settimeout(20)
        while connection.recv(1 << 16):
            pass
        connection.close()
