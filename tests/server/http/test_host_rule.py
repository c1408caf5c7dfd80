"""Names and origins that a server answers, where a web page elsewhere makes a browser send."""

from __future__ import annotations

import socket
from contextlib import closing

import httpx2
import pytest

from quire.server.http.host_rule import HostError, HostRule
from tests.server.websocket_client import Client


def rule(address="127.0.0.1", bound="127.0.0.1", hosts=(), origins=()):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(socket.socket(family)) as listener:
        listener.bind((address, 0))
        return HostRule.create(hosts, origins, bound, [listener])


def status(rule, *hosts, version="1.1", **headers):
    """Return 200 or the status of the refusal."""
    given = [(b"host", host.encode("latin-1")) for host in hosts]
    given += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    try:
        rule.check(given, version)
    except HostError as error:
        return error.status
    return 200


LOCAL = ["localhost", "LOCALHOST:80", "localhost.", "a.localhost:8000", "127.0.0.1:8000",
         "127.8.0.1", "[::1]:8000", "[::1]"]  # fmt: skip
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
           "192.168.0.1", "[::2]", "0.0.0.0", "2130706433"]  # fmt: skip
MALFORMED = ["", "a b", "a,b", "a/b", "http://a", "[::1", "a:b", "a:80:80", "\xe9", "a\x00", "a@b"]


def test_on_loopback_only_names_of_this_machine_count():
    for address in ("127.0.0.1", "::1"):
        local = rule(address, bound="my-name")
        assert {
            host: status(local, host) for host in [*LOCAL, "my-name", "My-Name:1"]
        } == dict.fromkeys([*LOCAL, "my-name", "My-Name:1"], 200)
        assert {host: status(local, host) for host in FOREIGN} == dict.fromkeys(FOREIGN, 403)


def test_elsewhere_every_name_counts_until_some_are_listed():
    assert [status(rule("0.0.0.0"), host) for host in (*LOCAL, *FOREIGN)] == [200] * 16
    listed = rule("0.0.0.0", bound="0.0.0.0", hosts=("llm.example", "other.example:8000"))
    for host in ("llm.example", "LLM.example.:443", "other.example:8000", *LOCAL):
        assert status(listed, host) == 200, host
    for host in ("evil.example", "other.example:1"):
        assert status(listed, host) == 403, host
    assert status(rule(hosts=("*",)), "evil.example") == 200


def test_a_head_has_one_valid_host():
    for checked in (rule(), rule("0.0.0.0")):
        assert [status(checked, host) for host in MALFORMED] == [400] * len(MALFORMED)
        assert status(checked) == status(checked, "localhost", "localhost") == 400
        assert status(checked, "localhost", "evil.example") == 400
        assert status(checked, version="1.0") == 200, "it had no such header"


def test_pages_of_other_origins():
    local = rule(origins=("https://friend.example",))
    for origin, expected in {
        "http://localhost:8000": 200,
        "https://friend.example": 200,
        "http://localhost:8001": 403,
        "https://evil.example": 403,
        "null": 403,
        "http://[": 403,
    }.items():
        assert status(local, "localhost:8000", origin=origin) == expected, origin
    assert status(local, "localhost", origin="https://e", sec_fetch_site="same-origin") == 200
    assert status(rule(origins=("*",)), "localhost", origin="null") == 200
    assert status(rule("0.0.0.0"), "a", origin="https://evil.example") == 200, "left to CORS"


def raw(client, data):
    """Send bytes; return everything that comes back."""
    url = httpx2.URL(str(client.base_url))
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    return answer


def test_a_rebound_name_reaches_no_route(client, engine):
    for path in ("/", "/v1/models", "/health", "/metrics", "/nothing"):
        answer = client.get(path, headers={"host": "evil.example:8000"})
        assert answer.status_code == 403, path
        error = answer.json()["error"]
        assert error["type"] == "PermissionDeniedError" and "--allowed-hosts" in error["message"]
    body = {"prompt": "a"}
    refused = client.post("/v1/completions", json=body, headers={"host": "evil.example"})
    foreign = client.post("/v1/completions", json=body, headers={"origin": "https://evil.example"})
    assert refused.status_code == foreign.status_code == 403
    assert "--allowed-origins" in foreign.json()["error"]["message"]
    assert not engine.params, "nothing was asked of the engine"
    metrics = client.get("/metrics").text
    assert 'reason="host"} 6.0' in metrics and 'reason="origin"} 1.0' in metrics


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: a\r\n", b"host: a b\r\n", b"host:\r\n"])
def test_no_host_two_hosts_and_a_wrong_one_are_400(client, hosts):
    answer = raw(client, b"GET /version HTTP/1.1\r\n" + hosts + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and b"[host]" in answer
    assert answer.count(b"HTTP/1.1") == 1


def test_names_and_origins_that_were_listed(serve):
    client = serve(allowed_hosts="llm.example", allowed_origins="https://friend.example")
    assert client.get("/health", headers={"host": "llm.example"}).status_code == 200
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 403
    headers = {"host": "llm.example", "origin": "https://friend.example"}
    answer = client.get("/health", headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://friend.example"


def test_what_a_form_can_post_is_judged_by_its_origin_under_any_name(serve, engine, monkeypatch):
    """A page of the web could empty the cache of a server that listens on all addresses."""
    resets = []

    async def reset():
        resets.append(1)

    monkeypatch.setattr(engine, "reset_prefix_cache", reset)
    client = serve(allowed_hosts="*", allowed_origins="https://friend.example")
    path, host = "/reset_prefix_cache", {"host": "llm.example:8000"}
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        declared = host if kind is None else host | {"content-type": kind}
        for origin in ("https://evil.example", "null", "http://llm.example"):
            answer = client.post(path, headers=declared | {"origin": origin})
            assert answer.status_code == 403 and "[origin]" in answer.json()["error"]["message"]
        assert not resets
        for own in (
            {},
            {"origin": "http://llm.example:8000"},
            {"origin": "https://llm.example", "sec-fetch-site": "same-origin"},
            {"origin": "https://friend.example"},
        ):
            assert client.post(path, headers=declared | own).status_code == 200
        assert len(resets) == 4
        resets.clear()
    evil = host | {"origin": "https://evil.example"}
    answer = client.post("/v1/completions", json={"prompt": "a"}, headers=evil)
    assert answer.status_code == 200, "pages must ask before they send JSON: left to CORS"
    assert "access-control-allow-origin" not in answer.headers
    assert client.get("/v1/models", headers=evil).status_code == 200


def test_an_upgrade_is_refused_alike(client):
    url = str(client.base_url)
    key = b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    head = b"GET /v1/completions HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n" + key
    for line, status in {
        b"host: evil.example\r\n": b"403",
        b"host: localhost\r\norigin: https://evil.example\r\n": b"403",
        b"": b"400",
        b"host: a\r\nhost: a\r\n": b"400",
    }.items():
        answer = raw(client, head + line + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status), (line, answer)
        assert b'"error"' in answer
    with Client(url, "/v1/completions", {"origin": url}) as same:
        same.socket.settimeout(60)
