"""Every answer carries the id of its request."""

from __future__ import annotations

import re

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health", None, 200),
        ("GET", "/metrics", None, 200),
        ("POST", CHAT, HELLO, 200),
        ("POST", CHAT, {**HELLO, "stream": True}, 200),
        ("POST", TEXT, {}, 400),
        ("GET", "/nothing", None, 404),
        ("GET", CHAT, None, 405),
    ],
)
def test_every_answer_names_its_request(client, method, path, body, status):
    fresh = client.request(method, path, json=body)
    given = client.request(method, path, json=body, headers={"x-request-id": "Root=1/abc"})
    assert (fresh.status_code, given.status_code) == (status, status)
    assert re.fullmatch("[0-9a-f]{32}", fresh.headers["x-request-id"])
    assert given.headers["x-request-id"] == "Root=1/abc"


def test_a_refused_key_and_a_large_body_too(serve, monkeypatch):
    monkeypatch.setattr("quire.server.http.body.MAX_BODY_BYTES", 10)
    client = serve(api_key="secret")
    headers = {"x-request-id": "mine"}
    assert client.get("/v1/models", headers=headers).headers["x-request-id"] == "mine"
    headers["authorization"] = "Bearer secret"
    response = client.post(TEXT, json={"prompt": "too long"}, headers=headers)
    assert (response.status_code, response.headers["x-request-id"]) == (413, "mine")


def test_the_answer_s_id_is_the_request_s_unless_the_body_names_another(client):
    headers = {"x-request-id": "mine"}
    answer = client.post(CHAT, json=HELLO, headers=headers)
    assert answer.json()["id"] == "chatcmpl-mine"
    answer = client.post(TEXT, json={"prompt": "a", "request_id": "other"}, headers=headers)
    assert (answer.json()["id"], answer.headers["x-request-id"]) == ("cmpl-other", "mine")
    answer = client.post(TEXT, json={"prompt": "a"})
    assert answer.json()["id"] == "cmpl-" + answer.headers["x-request-id"]


@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "é"])
def test_an_id_that_could_not_be_sent_back_is_refused(client, value):
    response = client.get("/health", headers={b"x-request-id": value.encode()})
    assert response.status_code == 400
    assert "x-request-id" in response.json()["error"]["message"]
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
