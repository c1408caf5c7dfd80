"""WebSocket streaming: the text that server-sent events carry; pings, cancels, keys and origins."""

from __future__ import annotations

import json
import socket

import httpx2
import pytest
from wsproto import events

from quire.server.http import unread_bodies
from quire.server.http.unread_bodies import FREE_BYTES
from tests.server.websocket_client import Client, Refused

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 40,
           "n": 2, "logprobs": True, "stream_options": {"include_usage": True}},
    COMPLETIONS: {"prompt": ["abc", "de"], "temperature": 0, "max_tokens": 40, "echo": True},
}  # fmt: skip


def of_sse(http, path, body):
    """Return the events of a stream over HTTP."""
    text = http.post(path, json=body | {"stream": True}).text
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    assert parts.pop() == "[DONE]"
    return [json.loads(part) for part in parts]


def joined(chunks):
    """Return each choice's text, ending, and the usage, however the chunks were cut."""
    texts: dict[int, str] = {}
    endings, usage = {}, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            endings[choice["index"]] = choice["finish_reason"] or endings.get(choice["index"])
    counts = usage and {k: usage[k] for k in ("prompt_tokens", "completion_tokens")}
    return texts, endings, counts


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_same_text_as_over_http(live, path):
    body = BODIES[path]
    expected = of_sse(live.http, path, body)
    with Client(live.url, path) as client:
        for _ in range(2):  # one connection, one request after another
            client.ask(body)
            found = list(client.answers())
            assert joined(found) == joined(expected)
            assert {c["object"] for c in found} == {c["object"] for c in expected}
    live.wait_until_idle()


def test_characters_of_several_tokens_arrive_whole(serve, engine):
    http = serve()
    with Client(str(http.base_url), CHAT) as client:
        client.ask(BODIES[CHAT])
        found = list(client.answers())
    texts, _, usage = joined(found)
    assert texts == {0: engine.text, 1: engine.text} and usage is not None
    assert joined(of_sse(http, CHAT, BODIES[CHAT])) == joined(found)


def test_pings_are_answered_while_a_request_runs(serve, engine):
    engine.hold_after = 1
    with Client(str(serve().base_url), COMPLETIONS) as client:
        client.ask('{"type": "ping"}')
        assert json.loads(client.next_text()) == {"type": "pong"}
        client.ask({"prompt": "a"})
        assert json.loads(client.next_text())["choices"]
        client.send(events.Ping(b"frame"))
        assert client.next_event() == events.Pong(b"frame")
        client.ask({"type": "ping"})
        assert json.loads(client.next_text()) == {"type": "pong"}
        client.ask({"prompt": "another"})
        assert "one request at a time" in json.loads(client.next_text())["error"]["message"]
        engine.released.set()
        assert [*client.answers()][-1]["choices"][0]["finish_reason"] == "stop"
    assert engine.ended == ["finished"]


def test_a_cancel_ends_the_request_and_keeps_the_connection(live):
    long = {"prompt": "a", "max_tokens": 20_000, "ignore_eos": True}
    with Client(live.url, COMPLETIONS) as client:
        client.ask(long)
        assert json.loads(client.next_text())["choices"]
        client.ask({"type": "cancel"})
        assert len([*client.answers()]) < 20_000
        live.wait_until_idle()
        client.ask({"prompt": "a", "max_tokens": 2, "ignore_eos": True})
        assert [*client.answers()][-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("politely", [True, False])
def test_closing_midway_frees_the_blocks(live, politely):
    before = live.metric("quire:request_success_total", 'finished_reason="abort"')
    with Client(live.url, COMPLETIONS) as client:
        client.ask({"prompt": "a", "n": 3, "max_tokens": 20_000, "ignore_eos": True})
        client.next_text()
        live.wait_until_running(1)
        if politely:
            client.send(events.CloseConnection(1000))
    live.wait_until_idle()
    after = live.metric("quire:request_success_total", 'finished_reason="abort"')
    assert after == before + 3


def test_errors_are_events_and_end_nothing_else(serve, engine):
    with Client(str(serve().base_url), COMPLETIONS) as client:
        for message, part in (
            ("{", "valid UTF-8 JSON"),
            ("[]", "object"),
            ('{"prompt": 3}', "prompt"),
            ('{"prompt": "a", "suffix": "b"}', "suffix"),
            ('{"prompt": "a", "model": "none"}', "does not exist"),
        ):
            client.ask(message)
            (error,) = client.answers()
            assert part in error["error"]["message"], message
        engine.fail_after = 2
        client.ask({"prompt": "a"})
        *_, error = client.answers()
        assert error["error"] == {
            "message": "Internal server error.", "type": "InternalServerError", "param": None,
            "code": 500,
        }  # fmt: skip
        engine.fail_after = None
        client.ask({"prompt": "a"})
        assert [*client.answers()][-1]["choices"][0]["finish_reason"] == "stop"


def test_keys_are_asked_for(serve, engine):
    url = str(serve(api_key="k-1").base_url)
    for keywords in (
        {},
        {"headers": {"authorization": "Bearer no"}},
        {"subprotocols": ("x", "k-1")},
    ):
        with pytest.raises(Refused, match="401"):
            Client(url, CHAT, **keywords)
    for keywords in (
        {"headers": {"authorization": "Bearer k-1"}},
        {"subprotocols": ("realtime", "openai-insecure-api-key.k-1")},
    ):
        with Client(url, COMPLETIONS, **keywords) as client:
            client.ask({"prompt": "a", "max_tokens": 1})
            assert [*client.answers()]
    assert {c.client_id[:4] for c in engine.clients} == {"sha-"}


def test_pages_of_other_origins_may_not(serve):
    closed, opened = serve(), serve(allowed_origins=("https://ours.example",))
    url = str(closed.base_url)
    for origin in ("https://evil.example", "null"):
        with pytest.raises(Refused, match="403"):
            Client(url, CHAT, headers={"origin": origin})
        with pytest.raises(Refused, match="403"):
            Client(str(opened.base_url), CHAT, headers={"origin": origin})
    Client(url, CHAT, headers={"origin": url}).socket.close()
    Client(str(opened.base_url), CHAT, headers={"origin": "https://ours.example"}).socket.close()


def test_there_are_only_two_of_them(serve):
    for path in ("/v1/models", "/nothing", "/metrics"):
        with pytest.raises(Refused) as caught:
            Client(str(serve().base_url), path)
        status, body = caught.value.args
        assert (status, body["error"]["type"]) == (404, "NotFoundError")


def test_what_a_browser_offers_is_answered(serve):
    """A browser that offers subprotocols and is answered by none closes the connection."""
    url = str(serve(api_key="k-1").base_url)
    key = "openai-insecure-api-key.k-1"
    for offered, expected in (
        (("realtime", key), "realtime"), ((key, "realtime"), "realtime"), ((key,), key),
    ):  # fmt: skip
        with Client(url, CHAT, subprotocols=offered) as client:
            assert client.subprotocol == expected
    with Client(url, CHAT, headers={"authorization": "Bearer k-1"}) as client:
        assert client.subprotocol is None


def test_queries_are_not_logged(serve, capsys):
    url = str(serve(uvicorn_log_level="debug").base_url)
    with Client(url, CHAT + "?key=secret-1"):
        pass
    with pytest.raises(Refused):
        Client(url, "/nothing?key=secret-1")
    lines = capsys.readouterr().err
    assert CHAT in lines and "/nothing" in lines and "secret" not in lines


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        (b"Connection: Upgrade\r\nUpgrade: websocket\r\n", "Sec-WebSocket-Version"),
        (b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
         "Sec-WebSocket-Key"),
    ],
)  # fmt: skip
def test_an_upgrade_that_is_none_is_refused_in_words(client, headers, word):
    url = httpx2.URL(str(client.base_url))
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        head = b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(head + headers + b"\r\n")
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"400" and b"x-request-id: " in head
    assert word in json.loads(body)["error"]["message"]


def test_messages_that_have_not_ended_share_the_bound_of_bodies(serve, monkeypatch):
    """Each could hold 32 MiB without its end, however many there were."""
    monkeypatch.setattr(unread_bodies, "MAX_KEY_BYTES", 2 * FREE_BYTES)
    http, part = serve(), "x" * (2 * FREE_BYTES)
    with (
        Client(str(http.base_url), COMPLETIONS) as one,
        Client(str(http.base_url), COMPLETIONS) as two,
    ):
        one.send(events.TextMessage(part, message_finished=False))
        one.send(events.Ping())
        assert isinstance(one.next_event(), events.Pong)  # it has come
        two.send(events.TextMessage(part, message_finished=False))
        two.send(events.TextMessage(part, message_finished=False))
        ended = two.next_event()
        assert isinstance(ended, events.CloseConnection) and ended.code == 1013
    with Client(str(http.base_url), COMPLETIONS) as again:
        again.ask({"prompt": "x" * FREE_BYTES, "timeout": "wrong"})
        assert "error" in next(iter(again.answers()))
