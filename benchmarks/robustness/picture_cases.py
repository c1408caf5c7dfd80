"""Hostile pictures and URLs as requests, each with what its refusal must say."""

from __future__ import annotations

import base64
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from tools.hostile_pictures import HOSTILE, picture, plain, png

NO_PICTURE = "a picture must"
NOT_ALLOWED = "must "
TYPES = ("PNG", "JPEG", "WEBP", "GIF")
#: Hosts that are not public, in many spellings.
PRIVATE_HOSTS = (
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1",
    "017700000001", "0", "0.0.0.0", "127.255.255.254", "localhost", "localhost.", "LOCALHOST",
    "LocalHost..", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[fe80::1]",
    "[fe80::1%25lo]", "[fd00::1]", "[fc00::1]", "[ff02::1]", "10.0.0.1", "10.255.255.255",
    "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255", "169.254.169.254",
    "169.254.0.1", "100.64.0.1", "192.0.2.1", "198.18.0.1", "203.0.113.1", "224.0.0.1",
    "239.255.255.255", "240.0.0.1", "255.255.255.255", "[::ffff:10.0.0.1]", "[::ffff:a9fe:a9fe]",
    "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "\u0661\u0662\u0667.0.0.1",
    "127\u30020\u30020\u30021", "\u2460\u2461\u2466.0.0.1", "ip6-localhost",
)  # fmt: skip
#: What the allowed web server does instead of giving a picture, and what the refusal says.
WEB_ANSWERS = {
    "html": NO_PICTURE, "empty": NO_PICTURE, "status": "answers 503", "nowhere": "answers 302",
    "short": "does not answer", "cut": NO_PICTURE, "gzip": NO_PICTURE, "told": "at most",
    "endless": "at most", "headers": "does not answer", "chunks": "does not answer",
    "noise": "does not answer", "closed": "does not answer", "circle/0": "redirect at most",
}  # fmt: skip
#: Each takes as long as a fetch may take.
SLOW_ANSWERS = ("trickle", "silent")


class Web(Protocol):
    """A server that may be asked."""

    host: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where a server under test may read, and where not.

    Attributes:
        folder: Folder whose files the server may read.
        trap_port: Port that the server may not connect to.
        most_pictures: Most pictures of a prompt.
    """

    folder: Path
    trap_port: int
    most_pictures: int


@dataclass(frozen=True, slots=True)
class Case:
    """A request.

    Attributes:
        kind: What it is an example of.
        name: Which.
        path: Of the API.
        body: JSON.
        reason: What the refusal says.
        statuses: That a refusal may have.
        may_pass: Whether it may be a picture after all.
    """

    kind: str
    name: str
    path: str
    body: dict[str, Any]
    reason: str
    statuses: tuple[int, ...] = (400,)
    may_pass: bool = False


def cases(count: int, places: Places, web: Web, chance: random.Random, *, slow: bool) -> list[Case]:
    """Return requests of all kinds in turn.

    Args:
        count: Requests.
        places: What may be read.
        web: May be asked.
        chance: Draws.
        slow: Whether some take ten seconds each.
    """
    kinds = [
        _whole_files(chance),
        _broken_files(chance),
        _data_urls(chance),
        _private(places, chance),
        _redirects(places, web),
        _web_answers(web),
        _files(places),
        _shapes(places),
    ]
    found = [next(kind) for kind, _ in zip(cycle(kinds), range(count), strict=False)]
    if slow:
        for number, name in enumerate(SLOW_ANSWERS * 2):
            case = _of_url("slow web", name, f"http://{web.host}/{name}", "within", path="chat")
            found[(number + 1) * len(found) // 5] = case
    return found


def private_urls(places: Places) -> list[str]:
    """Return URLs that lead to no public address, by each host and by tricks of spelling."""
    found = []
    for number, host in enumerate((*PRIVATE_HOSTS, socket.gethostname())):
        port = ("", f":{places.trap_port}", ":80", ":443")[number % 4]
        scheme = ("http", "https", "HTTP")[number % 3]
        found.append(f"{scheme}://{host}{port}/a.png")
    port = places.trap_port
    return [
        *found,
        f"http://example.com@127.0.0.1:{port}/",
        f"http://127.0.0.1:{port}#@example.com/",
        f"http://127.0.0.1:{port}\\@example.com/",
        f"http://a:b@localhost:{port}/",
        f"http:127.0.0.1:{port}/",
        f"http:///127.0.0.1:{port}/",
        f"http://[::1]:{port}/",
        f"http://[::1:{port}/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:-1/",
        "http:// 127.0.0.1/",
        "http://127.0.0.1/a b",
        "http://",
        "http://.",
        "ftp://127.0.0.1/a.png",
        "gopher://127.0.0.1:80/_GET",
        "dict://127.0.0.1:11211/stat",
        "unix:///var/run/docker.sock",
        "javascript:alert(1)",
    ]


def _request(path: str, url: Any) -> tuple[str, dict[str, Any]]:
    """Return the path of an API and a body in its form."""
    if path == "responses":
        part = {"type": "input_image", "image_url": url}
        body: dict[str, Any] = {"input": [{"role": "user", "content": [part]}]}
        return "/v1/responses", {**body, "max_output_tokens": 1}
    if path == "messages":
        source = {"type": "url", "url": url}
        content = [{"type": "image", "source": source}]
        body = {"model": "llava", "messages": [{"role": "user", "content": content}]}
        return "/v1/messages", {**body, "max_tokens": 1}
    part = {"type": "image_url", "image_url": {"url": url}}
    return "/v1/chat/completions", _chat([part])


def _chat(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def _of_url(kind: str, name: str, url: Any, reason: str, *, path: str, **more: Any) -> Case:
    return Case(kind, name, *_request(path, url), reason, **more)


def _of_file(kind: str, name: str, data: bytes, path: str, **more: Any) -> Case:
    """Return a request with a file: as a data URL, or as Ollama and Anthropic take it."""
    text = base64.b64encode(data).decode()
    if path == "ollama":
        message = {"role": "user", "content": "?", "images": [text]}
        body: dict[str, Any] = {"model": "llava", "messages": [message], "stream": False}
        return Case(kind, name, "/api/chat", body, NO_PICTURE, **more)
    if path == "messages":
        source = {"type": "base64", "media_type": "image/png", "data": text}
        content = [{"type": "image", "source": source}]
        body = {"model": "llava", "messages": [{"role": "user", "content": content}]}
        return Case(kind, name, "/v1/messages", {**body, "max_tokens": 1}, NO_PICTURE, **more)
    return _of_url(kind, name, f"data:image/png;base64,{text}", NO_PICTURE, path=path, **more)


def _whole_files(chance: random.Random) -> Iterator[Case]:
    """Files that pretend to be pictures, and bombs."""
    files = {name: data for name, (data, reason) in HOSTILE.items() if reason}
    files |= {
        "png of 60000 x 60000": png(60000, 60000, bytes(10**6)),
        "plain png of 7000 x 7000": plain((7000, 7000)),
        "webp of 8000 x 8000": plain((8000, 8000), format="WEBP", lossless=True, quality=0),
        "deep tiff": picture("F", format="TIFF"),
        "zip": b"PK\x03\x04" + bytes(200),
        "avif": b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miafMA1B" + bytes(100),
        "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
        "executable": b"\x7fELF\x02\x01\x01" + bytes(200),
        "jpeg 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100),
    }
    for name in cycle(files):
        path = chance.choice(("chat", "responses", "messages", "ollama"))
        # Ollama's images are base64 alone: nothing at all is refused as such.
        path = "chat" if name == "empty" else path
        yield _of_file("file", name, files[name], path)


def _broken_files(chance: random.Random) -> Iterator[Case]:
    """Pictures cut short, and with bits turned, which may leave pictures."""
    whole = {kind: picture(size=(90, 70), format=kind) for kind in TYPES if kind != "GIF"}
    whole["GIF"] = picture("P", (90, 70), format="GIF")
    for number, kind in enumerate(cycle(TYPES)):
        data = whole[kind]
        path = chance.choice(("chat", "responses", "messages", "ollama"))
        if number // len(TYPES) % 2:
            size = chance.randrange(1, len(data) * 9 // 10)
            yield _of_file("truncated", f"{kind} of {size} bytes", data[:size], path)
            continue
        turned = bytearray(data)
        places = [chance.randrange(len(data)) for _ in range(chance.choice((1, 4, 64)))]
        for place in places:
            turned[place] ^= 1 << chance.randrange(8)
        yield _of_file("bits turned", f"{kind} at {places[:4]}", bytes(turned), path, may_pass=True)


def _data_urls(chance: random.Random) -> Iterator[Case]:
    good = base64.b64encode(picture()).decode()
    urls = {
        "no base64": (f"data:image/png,{good}", "a data URL must be"),
        "percent": ("data:image/png;base64,%89PNG", "must be base64"),
        "no comma": (f"data:image/png;base64{good}", "a data URL must be"),
        "no type": (f"data:;base64,{good}", "of a type image/"),
        "text": (f"data:text/html;base64,{good}", "of a type image/"),
        "odd": ("data:image/png;base64,A", "must be base64"),
        "nothing": ("data:image/png;base64,", NO_PICTURE),
        "lines": ("data:image/png;base64,AAAA\nAAAA", "must be base64"),
        "nested": (f"data:image/png;base64,data:image/png;base64,{good}", "must be base64"),
        "alone": ("data:", "a data URL must be"),
        "two types": (f"data:image/png;data:text/plain,{good}", "a data URL must be"),
        "huge": (f"data:image/png;base64,{'A' * (28 * 2**20 + 4)}", "at most"),
        "not ASCII": ("data:image/png;base64,\u0430\u0431\u0432\u0433", "must be base64"),
    }
    for name in cycle(urls):
        url, reason = urls[name]
        path = chance.choice(("chat", "responses", "messages"))
        yield _of_url("data URL", name, url, reason, path=path)


def _private(places: Places, chance: random.Random) -> Iterator[Case]:
    for url in cycle(private_urls(places)):
        path = chance.choice(("chat", "responses", "messages"))
        yield _of_url("private address", url, url, NOT_ALLOWED, path=path)


def _redirects(places: Places, web: Web) -> Iterator[Case]:
    urls = private_urls(places)
    for number in cycle(range(len(urls))):
        url = f"http://{web.host}/redirect/{number}"
        yield _of_url("redirect", urls[number], url, NOT_ALLOWED, path="chat")


def _web_answers(web: Web) -> Iterator[Case]:
    for name in cycle(WEB_ANSWERS):
        yield _of_url("web", name, f"http://{web.host}/{name}", WEB_ANSWERS[name], path="chat")


def _files(places: Places) -> Iterator[Case]:
    folder, elsewhere = places.folder.as_uri(), "a file must be one of the folder"
    urls = [
        "file:///etc/passwd",
        "file:///proc/self/environ",
        "file:///dev/zero",
        "file:///dev/stdin",
        "file://localhost/etc/shadow",
        "file://127.0.0.1/etc/passwd",
        "file://host/share/a.png",
        "file:///",
        "file://",
        "file:etc/passwd",
        "FILE:///etc/passwd",
        f"{folder}/../../etc/passwd",
        f"{folder}/..%2f..%2fetc/passwd",
        f"{folder}/%2e%2e/model/config.json",
        f"{folder}/link",
        f"{folder}/circle",
        f"{folder}/inside",
        f"{folder}/pipe",
        f"{folder}/large.png",
        f"{folder}/missing.png",
        f"{folder}/a%00b.png",
        f"{folder}-other/a.png",
        str(places.folder / "text.png"),
        "../a.png",
    ]
    for number, url in enumerate(cycle(urls)):
        is_file = url.lower().startswith("file:")
        reason = elsewhere if is_file else "URL must begin with data:"
        path = ("chat", "responses", "messages")[number % 3]
        yield _of_url("local file", url, url, reason, path=path)


def _shapes(places: Places) -> Iterator[Case]:
    """Parts of the wrong form, and too many of them."""
    good = f"data:image/png;base64,{base64.b64encode(picture()).decode()}"
    part = {"type": "image_url", "image_url": {"url": good}}
    many = places.most_pictures + 1
    bodies = {
        "one too many": (
            [part] * many,
            f"must be at most {places.most_pictures} (--limit-mm-per-prompt)",
        ),
        "thousands": ([part] * 2000, "at most"),
        "a number": ([{"type": "image_url", "image_url": {"url": 7}}], "must"),
        "nothing": ([{"type": "image_url", "image_url": None}], "must"),
        "no URL": ([{"type": "image_url", "image_url": {}}], "must"),
        "a list": ([{"type": "image_url", "image_url": {"url": [good]}}], "must"),
        "no field": ([{"type": "image_url"}], "must"),
        "a long URL": (
            [{"type": "image_url", "image_url": {"url": "http://a/" + "a" * 10**6}}],
            "at most 8192 characters",
        ),
    }
    for name in cycle(bodies):
        content, reason = bodies[name]
        yield Case("form", name, "/v1/chat/completions", _chat(content), reason)
