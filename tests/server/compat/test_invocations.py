"""SageMaker's one route for all bodies."""

from __future__ import annotations

import pytest

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0},
    "/v1/completions": {"prompt": ["ab", "c"], "temperature": 0},
    "/v1/embeddings": {"input": "ab"},
}
VARYING = ("id", "created")


def stable(answer):
    return {name: value for name, value in answer.json().items() if name not in VARYING}


@pytest.mark.parametrize("path", BODIES)
def test_each_body_finds_its_endpoint(live, path):
    body = {**BODIES[path], **({} if "input" in BODIES[path] else {"max_tokens": 5})}
    expected = stable(live.http.post(path, json=body))
    answer = live.http.post("/invocations", json=body)
    assert answer.status_code == 200
    for name in set(expected) - {"usage"}:  # the cache had it the second time
        assert stable(answer)[name] == expected[name]


def test_a_stream_and_a_client_that_leaves(live):
    body = {"prompt": "a", "max_tokens": 20000, "ignore_eos": True, "stream": True}
    with live.http.stream("POST", "/invocations", json=body) as stream:
        lines = stream.iter_lines()  # kept: without it the connection would be closed here
        next(lines)
        live.wait_until_running(1)
    live.wait_until_idle()


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"{", 400, "valid UTF-8 JSON"),
        (b"[]", 400, "object"),
        (b"{}", 400, "messages"),
        (b'{"foo": 1}', 400, "exactly one of messages, prompt, input; got none"),
        (b'{"prompt": "a", "input": "b"}', 400, "got prompt and input"),
        (b'{"prompt": "a", "suffix": "b"}', 400, "suffix"),
    ],
)
def test_what_is_refused(client, engine, content, status, word):
    headers = {"content-type": "application/json"}
    answer = client.post("/invocations", content=content, headers=headers)
    assert answer.status_code == status and word in answer.json()["error"]["message"]
    assert client.post("/invocations", content=content).status_code in (400, 415)
    assert engine.params == []


def test_the_size_limit_holds(client, monkeypatch):
    monkeypatch.setattr("quire.server.http.body.MAX_BODY_BYTES", 100)
    assert client.post("/invocations", json={"prompt": "x" * 200}).status_code == 413
