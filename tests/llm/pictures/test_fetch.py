"""Fetching pictures from loopback servers: limits of time, size and redirects."""

import socket
import threading
from contextlib import closing, contextmanager

import pytest

from quire.core.errors import RequestError
from quire.llm.pictures import fetch as fetching
from quire.llm.pictures.addresses import AllowedHosts
from quire.llm.pictures.fetch import MAX_BYTES, fetch


class Web:
    """A server on a loopback port that answers each connection in its turn.

    Attributes:
        paths: What was asked for, in order; a connection without a request is None.
    """

    def __init__(self, answer):
        self.answer = answer
        self.paths = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                request = connection.recv(65536).decode()
                path = request.split(" ")[1] if request else None
                self.paths.append(path)
                try:
                    for part in self.answer(path):
                        connection.sendall(part)
                except OSError:
                    pass  # the client has left


@contextmanager
def web(answer):
    made = Web(answer)
    with closing(made.listener):
        yield made
        made.listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake its thread


def page(body, *headers, status="200 OK"):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return ["\r\n".join([*lines, "", ""]).encode() + body]


def redirect(to, status="302 Found"):
    return page(b"", f"Location: {to}", status=status)


def test_a_picture_is_fetched():
    with web(lambda path: page(b"picture")) as server:
        allowed = AllowedHosts([server.host])
        assert fetch(f"http://{server.host}/a.png?b=c", allowed, "x") == b"picture"
    assert server.paths == ["/a.png?b=c"]


def test_a_body_without_a_length_is_read_to_its_end():
    with web(lambda path: [b"HTTP/1.0 200 OK\r\n\r\n", b"pic", b"ture"]) as server:
        assert fetch(f"http://{server.host}/", AllowedHosts([server.host]), "x") == b"picture"


def test_redirects_are_followed_a_few_times():
    def answer(path):
        number = int(path[1:])
        return page(b"picture") if number == 3 else redirect(f"/{number + 1}")

    with web(answer) as server:
        allowed = AllowedHosts([server.host])
        assert fetch(f"http://{server.host}/0", allowed, "x") == b"picture"
        assert server.paths == ["/0", "/1", "/2", "/3"]
        with pytest.raises(RequestError, match="redirect at most 3 times"):
            fetch(f"http://{server.host}/-1", allowed, "x")
        assert server.paths[4:] == ["/-1", "/0", "/1", "/2"]


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("http://127.0.0.1:{other}/", "allowed-media-domains"),
        ("http://localhost:{other}/", "allowed-media-domains"),
        ("//127.0.0.1:{other}/", "allowed-media-domains"),
        ("http://169.254.169.254/latest/meta-data/", "public addresses"),
        ("http://[::ffff:127.0.0.1]/", "public addresses"),
        ("http://2130706433/", "public addresses"),
        ("http://0/", "public addresses"),
        ("file:///etc/passwd", "http or https"),
        ("gopher://127.0.0.1/", "http or https"),
        ("http://a@127.0.0.1/", "no user"),
        ("http://[::1", "redirect to a URL"),
    ],
)
def test_a_redirect_leads_nowhere_else(to, reason):
    """The other server listens where redirects point to, and must hear nothing."""
    with web(lambda path: page(b"secret")) as other:
        location = to.format(other=other.port)
        with web(lambda path: redirect(location)) as server:
            allowed = AllowedHosts([server.host, "*"])
            with pytest.raises(RequestError, match=reason) as caught:
                fetch(f"http://{server.host}/", allowed, "messages[0]")
            assert caught.value.param == "messages[0]"
            assert len(server.paths) == 1
        assert other.paths == []


def test_a_name_that_leads_to_a_private_address_is_not_connected_to(monkeypatch):
    with web(lambda path: page(b"secret")) as server:
        found = socket.getaddrinfo("127.0.0.1", server.port, type=socket.SOCK_STREAM)
        monkeypatch.setattr(fetching.socket, "getaddrinfo", lambda *_, **__: found)
        allowed = AllowedHosts([f"pictures.example:{server.port}"])
        with pytest.raises(RequestError, match="public addresses"):
            fetch(f"http://pictures.example:{server.port}/", allowed, "x")
        assert server.paths == []


@pytest.mark.parametrize("told", [True, False])
def test_no_more_is_read_than_a_picture_may_have(told):
    sent = 0

    def answer(path):
        nonlocal sent
        head = b"HTTP/1.1 200 OK\r\n"
        yield head + (b"Content-Length: %d\r\n\r\n" % (10 * MAX_BYTES) if told else b"\r\n")
        while sent < 10 * MAX_BYTES:
            sent += 2**20
            yield bytes(2**20)

    with web(answer) as server, pytest.raises(RequestError, match=f"at most {MAX_BYTES} bytes"):
        fetch(f"http://{server.host}/", AllowedHosts([server.host]), "x")
    assert sent < 2 * MAX_BYTES


def drip(parts):
    pause = threading.Event()
    for part in parts:
        yield part
        pause.wait(0.05)


@pytest.mark.parametrize("slow", ["silent", "head", "body"])
def test_what_is_slow_is_left(slow):
    def answer(path):
        if slow == "silent":
            return drip([b""] * 1000)
        if slow == "head":
            return drip([b"HTTP/1.1 200 OK\r\nA: "] + [b"a"] * 1000)
        return drip([b"HTTP/1.1 200 OK\r\n\r\n"] + [b"a"] * 1000)

    with web(answer) as server, pytest.raises(RequestError, match=r"answered within 0\.3 s"):
        fetch(f"http://{server.host}/", AllowedHosts([server.host]), "x", seconds=0.3)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (page(b"no", status="404 Not Found"), "answers 404"),
        ([b"SSH-2.0-OpenSSH\r\n"], "does not answer"),
        ([b""], "does not answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"], "does not answer"),
        ([b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n"], "does not answer"),
    ],
)
def test_what_is_no_answer_is_refused(sent, reason):
    with web(lambda path: sent) as server, pytest.raises(RequestError, match=reason):
        fetch(f"http://{server.host}/", AllowedHosts([server.host]), "x")


def test_a_host_that_does_not_exist_or_listen_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # kept, and without a listener
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RequestError, match="cannot be reached"):
            fetch(f"http://{host}/", AllowedHosts([host]), "x")
    with pytest.raises(RequestError, match="public addresses"):
        fetch("http://nowhere.invalid/", AllowedHosts(["*"]), "x")
