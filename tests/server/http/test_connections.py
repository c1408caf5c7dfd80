"""Connections as hostile or careless clients use them: many, unread, pipelined, full of garbage."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress

import httpx2
import pytest

from quire.server.http.connection_rules import PROBE_CONNECTIONS
from quire.server.http.protocol import PARSED_AT_ONCE, HttpProtocol
from quire.server.http.unread_answers import UnreadAnswers
from quire.server.http.websocket_protocol import WebSocketProtocol
from tests.sizes import sized

GET = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"


def connect(client, **options):
    url = httpx2.URL(str(client.base_url))
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.settimeout(60)
    connection.connect((url.host, url.port))
    return connection


def post(path, body):
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    ).encode() + content


def read_to_end(connection):
    answer = b""
    while piece := connection.recv(1 << 16):
        answer += piece
    return answer


def statuses(answer):
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", answer)]


def exchange(client, data, size=None):
    """Send bytes in pieces of ``size``, the last request asking for the end; return the answer."""
    data += GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    with connect(client) as connection:

        def send():
            step = size or len(data)
            for start in range(0, len(data), step):
                connection.sendall(data[start : start + step])

        sending = threading.Thread(target=send)
        sending.start()
        answer = read_to_end(connection)
        sending.join(60)
    return answer


@pytest.mark.parametrize("size", [None, 7, 1460, 65536])
def test_pipelined_requests_are_all_answered_in_order(client, engine, size):
    """What did not fit one read of 64 KiB was a head too large."""
    ask = post("/v1/completions", {"prompt": "a", "stream": True})
    many = 20 if size == 7 else sized(1800, 3000)
    assert size == 7 or len(GET) * many > 1 << 16
    answer = exchange(client, GET + ask + GET * many + ask, size)
    assert statuses(answer) == [200] * (many + 4)
    streams = [match.start() for match in re.finditer(rb"data: \[DONE\]", answer)]
    assert len(streams) == 2 and answer.rfind(b"HTTP/1.1") > streams[1]
    assert engine.ended == ["finished", "finished"]


def test_a_large_head_in_small_pieces(client):
    """What had come of a header counted twice when the header ended in another read."""
    ask = GET.replace(b"\r\n\r\n", b"\r\nx-large: " + b"y" * 50_000 + b"\r\n\r\n")
    assert statuses(exchange(client, ask * 2, 1460)) == [200] * 3


def test_an_upgrade_before_the_answer_loses_no_answer(client, engine):
    """The WebSocket took the connection, was refused and closed it; the answer went nowhere."""
    engine.hold_after = 1
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    with connect(client) as connection:
        connection.sendall(post("/v1/completions", {"prompt": "a", "stream": True}))
        answer = connection.recv(1 << 16)
        connection.sendall(upgrade)
        assert client.get("/version").status_code == 200, "by now the upgrade is read"
        engine.released.set()
        answer += read_to_end(connection)
    assert statuses(answer) == [200] and b"data: [DONE]" in answer
    assert engine.ended == ["finished"]


def test_large_bodies_in_a_row(client):
    ask = post("/tokenize", {"prompt": "x " * 50_000})
    assert statuses(exchange(client, ask * 3)) == [200] * 4


def test_garbage_after_a_request_ends_the_connection_after_its_answer(client, engine):
    """The 400 was written into the midst of the answer before it."""
    engine.hold_after = 1
    with connect(client) as connection:
        connection.sendall(post("/v1/completions", {"prompt": "a", "stream": True}))
        answer = connection.recv(1 << 16)
        connection.sendall(b"\x00NONSENSE\r\n\r\n")
        assert client.get("/version").status_code == 200, "by now the garbage is read"
        engine.released.set()
        answer += read_to_end(connection)
    assert statuses(answer) == [200] and b"data: [DONE]" in answer
    assert engine.ended == ["finished"]


def test_a_client_that_leaves_a_pipeline_ends_what_runs(client, engine):
    """Only the newest request learned of it; the one that ran went on to its end."""
    engine.hold_after = 1
    with connect(client) as connection:
        ask = post("/v1/completions", {"prompt": "a", "stream": True})
        connection.sendall(ask)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.sendall(ask)
    end = time.monotonic() + 60
    while engine.ended != ["closed"]:
        assert time.monotonic() < end, engine.ended
        time.sleep(0.01)
    assert not engine.open_requests


def test_connections_above_the_limit_are_told_and_probes_are_answered(serve):
    client = serve(max_connections=3)
    with ExitStack() as stack:
        held = [stack.enter_context(connect(client)) for _ in range(3)]
        time.sleep(0.1)
        with connect(client) as another:
            another.sendall(GET)
            answer = read_to_end(another)
        assert statuses(answer) == [503] and b"--max-connections" in answer
        assert re.search(rb"(?i)\r\nretry-after: 1\r\n", answer)
        assert re.search(rb"(?i)\r\nconnection: close\r\n", answer)
        assert httpx2.get(f"{client.base_url}/health").status_code == 200
        flood = [stack.enter_context(connect(client)) for _ in range(PROBE_CONNECTIONS)]
        time.sleep(0.1)
        with connect(client) as another:  # not even read
            assert another.recv(100) == b""
        assert flood
        held[0].sendall(GET)
        assert held[0].recv(1 << 16).startswith(b"HTTP/1.1 200"), "those inside are served"
    end = time.monotonic() + 60
    while (answer := httpx2.get(f"{client.base_url}/metrics")).status_code != 200:
        assert time.monotonic() < end, answer.text
    assert re.search(r'reason="connections"} [2-9]', answer.text)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_never_reads_is_cut_and_its_request_ends(serve, engine, stream):
    """It held its request, and a connection that no code could close, for ever."""
    client = serve(write_timeout=1.0)
    # An answer of 9 or 6 MB: the system takes up to 4 MiB unread.
    engine.text, engine.max_model_len = "x" * sized(20_000, 30_000), 1_000_000
    body = {"prompt": "a", "stream": stream, "max_tokens": 50_000, "n": 8, "logprobs": 1}
    with connect(client, SO_RCVBUF=4096) as connection:
        connection.sendall(post("/v1/completions", body))
        end = time.monotonic() + 60
        while "unread_answer_disconnects_total{" not in (text := client.get("/metrics").text) or (
            re.search(r"unread_answer_disconnects_total{[^}]*} 0.0", text)
        ):
            assert time.monotonic() < end
            time.sleep(0.1)
    while engine.open_requests:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert client.get("/health").status_code == 200


class Transport:
    def __init__(self):
        self.size, self.aborted = 0, False

    def get_write_buffer_size(self):
        return self.size

    def abort(self):
        self.aborted = True


class Connection:
    def __init__(self):
        self.transport, self.waits_to_write = Transport(), True


def test_only_what_does_not_shrink_is_cut():
    now = 0.0
    unread = UnreadAnswers(10.0, lambda: now)
    slow, stuck, busy = connections = [Connection(), Connection(), Connection()]
    busy.waits_to_write = False
    for connection in connections:
        connection.transport.size = 1000
    for now in range(0, 30, 2):
        slow.transport.size -= 1
        unread.cut(connections)
        assert stuck.transport.aborted == (now >= 10)
    assert not slow.transport.aborted and not busy.transport.aborted


def garbage():
    """Yield what no client means to send."""
    choose = random.Random(5)
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)  # TLS
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(50)
    yield b"CONNECT a:1 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    yield b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n"
    yield b"GET \xff HTTP/1.1\r\nhost: localhost\r\n\r\n"
    yield b"GET /%ff%00 HTTP/1.1\r\nhost: localhost\r\nx: \x80\r\n\r\n"
    yield b"GET http://[ HTTP/1.1\r\nhost: localhost\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nx" * 2
    chunked = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    chunked += b"content-type: application/json\r\n\r\n"
    yield chunked + b"zz\r\n"
    yield chunked + b"ffffffffffffffffffff\r\n"
    yield chunked + b"5\r\n{}" + bytes(20)
    for _ in range(30):
        yield choose.randbytes(choose.randrange(1, 400))
        whole = bytearray(post("/tokenize", {"prompt": "a"}) + GET)
        for _ in range(4):
            whole[choose.randrange(len(whole))] = choose.randrange(256)
        yield bytes(whole)


def frames():
    """Yield what no WebSocket client means to send after its handshake."""
    choose = random.Random(6)
    mask = b"\x01\x02\x03\x04"
    close = b"\x88\x80" + mask
    yield close + close + b"\x89\x80" + mask + b"\x81\x81" + mask + b"a"
    yield b"\x81\x01a"  # not masked
    yield b"\xff\xff" + b"\xff" * 20
    yield b"\x88\x81" + mask + b"a"  # a close with half a code
    yield b"\x81\x82" + mask + b"\xff\xff"  # not UTF-8
    yield b"\x80\x81" + mask + b"a"  # continues nothing
    yield b"\x81\xff" + b"\x7f" * 8 + mask  # 9 exabytes
    for _ in range(30):
        yield choose.randbytes(choose.randrange(1, 100))


UPGRADE = (
    b"GET /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_garbage_leaves_no_traceback(serve, capfd, caplog):
    client = serve(uvicorn_log_level="info")
    for data in [*garbage(), *(UPGRADE + data for data in frames())]:
        with connect(client) as connection:
            connection.sendall(data)
            connection.settimeout(0.05)
            with suppress(OSError):
                connection.recv(1 << 16)
    for data in frames():
        with connect(client) as connection:
            connection.sendall(UPGRADE)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 101")
            connection.sendall(data)
            connection.settimeout(0.05)
            with suppress(OSError):
                connection.recv(1 << 16)
    assert client.get("/health").status_code == 200
    logged = caplog.text + capfd.readouterr().err
    assert "Traceback" not in logged and "Exception" not in logged


CHUNKED = (
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    b"content-type: application/json\r\nconnection: close\r\n\r\n"
)
LAST_GET = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
#: Frames with a mask of zeros.
PING, CLOSE = b"\x89\x80" + bytes(4), b"\x88\x80" + bytes(4)
FRAGMENTS = b"\x01\x80" + bytes(4) + b"\x00\x81\x00\x00\x00\x00a" * 4000


def upgraded(connection):
    connection.sendall(UPGRADE)
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 101")


@pytest.mark.parametrize(
    ("kind", "name", "data"),
    [
        (HttpProtocol, "on_message_begin", GET * 4000 + LAST_GET),
        (HttpProtocol, "on_body", CHUNKED + b"1\r\n \r\n" * 4000 + b"0\r\n\r\n"),
        (WebSocketProtocol, "handle_ping", PING * 4000 + CLOSE),
        (WebSocketProtocol, "handle_message", FRAGMENTS + CLOSE),
    ],
    ids=["requests", "chunks", "pings", "fragments"],
)
def test_a_read_of_many_parts_lets_others_have_turns(client, monkeypatch, kind, name, data):
    """A read is 256 KiB: 9,000 requests or 40,000 chunks or frames held the loop up for 1 s."""
    original, counts = getattr(kind, name), [0]

    def counted(protocol, *given):
        if not counts[-1]:
            protocol.loop.call_soon(counts.append, 0)
        counts[-1] += 1
        return original(protocol, *given)

    monkeypatch.setattr(kind, name, counted)
    with connect(client) as connection:
        if kind is WebSocketProtocol:
            upgraded(connection)
        connection.sendall(data)
        read_to_end(connection)
    assert sum(counts) >= 4000
    assert max(counts) <= 2 * PARSED_AT_ONCE


def test_pings_of_a_client_that_reads_nothing_are_not_answered(client, monkeypatch):
    """The answers waited in memory, as many as the client sent pings."""
    original = WebSocketProtocol.handle_ping

    def unread(protocol, event):
        protocol.writable.clear()
        original(protocol, event)

    monkeypatch.setattr(WebSocketProtocol, "handle_ping", unread)
    with connect(client) as connection:
        upgraded(connection)
        connection.sendall(PING * 3 + CLOSE)
        assert read_to_end(connection)[:1] == CLOSE[:1]


def test_websockets_take_no_compressed_messages(client):
    """A frame of 200 KB became 200 MiB on the event loop."""
    offer = b"\r\nsec-websocket-extensions: permessage-deflate\r\n\r\n"
    with connect(client) as connection:
        connection.sendall(UPGRADE.replace(b"\r\n\r\n", offer))
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 101") and b"deflate" not in answer
