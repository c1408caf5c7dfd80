"""What is refused before a route sees it."""

from __future__ import annotations

import json
import socket

import httpx2
import pytest

from quire.server.http_protocol import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES


def exchange(client, data):
    """Send bytes; return status and error."""
    address = httpx2.URL(str(client.base_url))
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
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
