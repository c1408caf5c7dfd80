"""Requests that are wrong in every layer: line, headers, paths, encodings, JSON, types, sizes.

Each is bytes on a connection of its own, and each must be answered with OpenAI's error body.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
#: A right body for each path, which is then broken.
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    TEXT: {"prompt": "Hi", "max_tokens": 2},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
#: Fields of every generation request with values that they cannot have.
WRONG_VALUES: dict[str, tuple[Any, ...]] = {
    "n": ("1", 0, -3, 1.5, [], 10**30),
    "temperature": ("hot", -1, [], {}, 1e400),
    "top_p": (-0.5, 3, "x", 0),
    "top_k": ("k", -7, 2.5),
    "max_tokens": ("many", -2, 1.5, 10**12, []),
    "stop": (5, [1], {"a": 1}, [None]),
    "stream": ("yes", 1, []),
    "seed": ("s", 10**40, 1.5),
    "logit_bias": ([1], {"a": 1}, {"5": "x"}, {"5": 1e9}),
    "presence_penalty": ("p", 99),
    "response_format": ("json", {"type": "xml"}, {"type": "json_schema"}, 7),
    "structured_outputs": ({"regex": "["}, {"json": "{"}, {"choice": []}, "x"),
    "stream_options": ({"include_usage": True}, "x"),
    "timeout": (-1, 0, "soon"),
    "request_id": ("with space", "", "x" * 200, 5),
    "cache_salt": ("", 5),
    "model": ("no-such-model", 5, []),
    "allowed_token_ids": ([-1], [10**9], "x", []),
    "priority": ("high", 2**40),
}

Maker = Callable[[random.Random], bytes]


def _post(path: str, body: bytes, *headers: str, kind: str | None = "application/json") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _right(rnd: random.Random) -> tuple[str, bytes]:
    path = rnd.choice(list(BODIES))
    return path, json.dumps(BODIES[path]).encode()


def cut_json(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    return _post(path, body[: rnd.randrange(len(body))])


def random_bytes(rnd: random.Random) -> bytes:
    return _post(_right(rnd)[0], b"\xff" + rnd.randbytes(rnd.randrange(1, 300)))


def bad_utf8(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    at = rnd.randrange(1, len(body) - 1)
    bad = rnd.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80"])
    return _post(path, body[:at] + bad + body[at:])


def other_encoding(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    text = body.decode()
    encoded = [
        text.encode("utf-16"),
        text.encode("utf-32"),
        b"\xef\xbb\xbf" + body,
        text.encode("cp037"),
    ]
    if rnd.random() < 0.3:
        return _post(path, gzip.compress(body), "Content-Encoding: gzip")
    return _post(path, rnd.choice(encoded))


def not_an_object(rnd: random.Random) -> bytes:
    values = [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"text"',
        b"12",
        b"true",
        b"NaN",
        b"{}",
        b"{}{}",
        b'{"a":1}',
    ]
    return _post(_right(rnd)[0], rnd.choice(values))


def deep_nesting(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    depth = rnd.choice([1100, 5000, 100_000])
    opening, closing = rnd.choice([(b"[", b"]"), (b'{"a":', b"}")])
    deep = opening * depth + (b"1" + closing * depth if rnd.random() < 0.5 else b"")
    name = rnd.choice([b"messages", b"prompt", b"tokens", b"padding", b"response_format"])
    return _post(path, body[:-1] + b', "' + name + b'": ' + deep + b"}")


def strange_literals(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    literals = [
        b"NaN",
        b"Infinity",
        b"-",
        b"01",
        b"1.",
        b"0x10",
        b"'a'",
        b"undefined",
        b'"\\ud800"',
        b'"\t"',
        b'"\\x"',
        b"1e",
        b"+1",
        b"TRUE",
    ]
    return _post(path, body[:-1] + b', "model": ' + rnd.choice(literals) + b"}")


def wrong_value(rnd: random.Random) -> bytes:
    path = rnd.choice([CHAT, TEXT])
    name = rnd.choice(list(WRONG_VALUES))
    value = rnd.choice(WRONG_VALUES[name])
    text = json.dumps(BODIES[path] | {name: value}).replace("Infinity", "1e400")
    return _post(path, text.encode())


def wrong_content(rnd: random.Random) -> bytes:
    message: Any = rnd.choice(
        [None, 5, "x", {"role": "user"}, {"role": "wizard", "content": "x"}, {"content": "x"},
         {"role": "user", "content": 5}, {"role": "user", "content": [{"type": "video"}]},
         {"role": "user", "content": [{"type": "text"}]}]
    )  # fmt: skip
    prompt: Any = rnd.choice(
        [None, 5, [], [[]], [""], [1, "a"], [-1], [2**31], {"a": 1}, [None], ""]
    )
    body = rnd.choice(
        [(CHAT, {"messages": [message]}), (CHAT, {"messages": message}), (TEXT, {"prompt": prompt})]
    )
    return _post(body[0], json.dumps(body[1]).encode())


def content_type(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    kinds = [
        None,
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "",
        "json",
        "application/jsonx",
        "\xff\xfe",
    ]
    return _post(path, body, kind=rnd.choice(kinds))


def bad_path(rnd: random.Random) -> bytes:
    paths = [
        "/nothing",
        "/v1/",
        "/v1/chat",
        "//v1/completions",
        "/v1/completions/",
        "/%00",
        "/%ff%fe",
        "/..%2f..%2fetc/passwd",
        "/v1/models/none",
        "/v1/models/" + "x" * 3000,
        "/" + "a" * rnd.choice([10, 20_000]),
        "/?" + "q" * 20_000,
        "/v1/%2e%2e/x",
    ]
    method = rnd.choice(["GET", "POST"])
    path = rnd.choice(paths)
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()


def bad_method(rnd: random.Random) -> bytes:
    method = rnd.choice(["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
    path = rnd.choice([*BODIES, "/v1/models", "/metrics", "/version"])
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()


def bad_line(rnd: random.Random) -> bytes:
    lines = [
        "GARBAGE / HTTP/1.1",
        "GET",
        "GET / HTTP/9.9",
        "GET / HTTX/1.1",
        "get / HTTP/1.1",
        "POST  /x",
        "\x16\x03\x01\x02\x00\x01",
        "PRI * HTTP/2.0",
        "GET /\xff HTTP/1.1",
        "GET /a b HTTP/1.1",
        "POST /v1/completions HTTP/1.1\r\nHost x",
    ]
    return (rnd.choice(lines) + "\r\n\r\n").encode("latin-1") + rnd.randbytes(8)


def bad_header(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    headers = [
        "X-Request-Id: " + "x" * 200,
        "X-Request-Id: \xe4",
        "Bad Header: x",
        ": x",
        "X\x00: y",
        "A: b\x00c",
        "Content-Length: 5",
        "Transfer-Encoding: banana",
        "Transfer-Encoding: chunked",
        "X-Long: " + "x" * rnd.choice([70_000, 300_000]),
        "\r\n".join(f"X-{i}: y" for i in range(1000)),
    ]
    timeouts = [
        "X-Request-Timeout: soon",
        "X-Request-Timeout: -1",
        "X-Request-Timeout: nan",
        "X-Request-Timeout: inf",
        "X-Request-Timeout: 0",
    ]
    if path in (CHAT, TEXT) and rnd.random() < 0.3:
        headers = timeouts
    return _post(path, body, rnd.choice(headers))


def bad_host(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    hosts = ["evil.example", "evil.example:8000", "", "a b", "localhost\r\nHost: localhost", "[::"]
    request = _post(path, body).replace(b"Host: localhost\r\n", b"")
    line = rnd.choice([*(f"Host: {host}\r\n" for host in hosts), "", "Origin: null\r\n"])
    return request.replace(b"\r\n", b"\r\n" + line.encode(), 1)


def bad_length(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    length = rnd.choice(["-1", "abc", "1e3", "0x10", str(33 * 2**20), str(10**30), "1", "", "5 5"])
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + body


def bad_chunks(rnd: random.Random) -> bytes:
    path, body = _right(rnd)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    chunks = rnd.choice(
        [
            b"zz\r\n",
            b"-5\r\nhello\r\n",
            b"5\r\nhello\r\n0\r\n\r\n",
            b"ffffffffffffffffff\r\n",
            b"3\r\n{}x0\r\n\r\n",
        ]
    )
    return head.encode() + chunks + body


MAKERS: tuple[Maker, ...] = (
    cut_json, random_bytes, bad_utf8, other_encoding, not_an_object, deep_nesting,
    strange_literals, wrong_value, wrong_value, wrong_value, wrong_content, content_type, bad_path,
    bad_method, bad_line, bad_header, bad_host, bad_length, bad_chunks,
)  # fmt: skip


@dataclass
class Report:
    """What came back.

    Attributes:
        statuses: How many of each.
        kinds: How many requests of each kind.
        wrong: What was not OpenAI's error body, as text.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def run(url: str, num_requests: int, *, seed: int = 0, clients: int = 4) -> Report:
    """Send malformed requests to the server at ``url``."""
    report = Report()
    address = httpx2.URL(url)
    place = (address.host, address.port or 80)

    def one(number: int) -> None:
        rnd = random.Random(seed * 1_000_003 + number)
        maker = rnd.choice(MAKERS)
        request = maker(rnd)
        report.kinds[maker.__name__] += 1
        try:
            status, problem = _exchange(place, request)
        except (OSError, ValueError, IndexError) as error:
            status, problem = 0, f"no answer: {error!r}"
        report.statuses[status] += 1
        if problem is not None:
            report.wrong.append(f"{maker.__name__} #{number}: {problem}: {request[:300]!r}")

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, range(num_requests)))
    return report


def _exchange(place: tuple[str, int], request: bytes) -> tuple[int, str | None]:
    """Return the status, and what is wrong with the answer."""
    with socket.create_connection(place, timeout=60) as connection:
        with suppress(ConnectionError):  # refused before its end; the answer is there all the same
            connection.sendall(request)
        head, _, rest = _receive(connection).partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if not 400 <= status < 500:
        return status, f"status {status}, {rest[:200]!r}"
    if b"content-type: application/json" not in head.lower():
        return status, f"not JSON by its type: {head!r}"
    error = json.loads(rest)["error"]
    if not (error["message"] and error["type"] and error["code"] == status and "param" in error):
        return status, f"not the error body: {rest!r}"
    return status, None


def _receive(connection: socket.socket) -> bytes:
    """Read one response; its length is declared."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(1 << 16)
        if not piece:
            raise ValueError(f"the connection ended after {data!r}")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields.get(b"content-length", b"0")):
        piece = connection.recv(1 << 16)
        if not piece:
            raise ValueError(f"the body ended after {body!r}")
        body += piece
    return head + b"\r\n\r\n" + body
