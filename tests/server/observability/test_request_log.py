"""One line per request, and what must not be in it."""

from __future__ import annotations

import json
import logging

import pytest

from quire.system.log import HumanFormatter, JsonFormatter


@pytest.fixture
def lines(monkeypatch):
    """Return a function that formats what the log got so far."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("quire.server.observability.request_log")
    monkeypatch.setattr(logger, "handlers", [handler])

    def read(formatter: logging.Formatter | None = None) -> list[str]:
        return [(formatter or JsonFormatter()).format(record) for record in records]

    return read


def wait_for(lines, count):
    while len(lines()) < count:
        pass
    return [json.loads(line) for line in lines()]


def test_a_generation_has_ids_counts_and_times(client, lines):
    body = {"prompt": "secret words", "n": 2, "max_tokens": 3, "request_id": "mine"}
    client.post("/v1/completions", json=body, headers={"x-request-id": "r-1"})
    (line,) = wait_for(lines, 1)
    assert line["message"] == "request" and line["level"] == "info"
    expected = {
        "request_id": "r-1", "method": "POST", "path": "/v1/completions", "status": 200,
        "model": "quire-tiny", "stream": False, "prompts": 1, "prompt_tokens": 12,
        "cached_tokens": 2, "completion_tokens": 6, "finish_reasons": ["length", "length"],
        "preemptions": 0, "client": "127.0.0.1",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert line["seconds"] >= line["first_token_seconds"] >= line["queue_seconds"] >= 0


def test_behind_a_proxy_on_this_machine_the_client_is_that_of_the_proxy(client, lines):
    client.get("/v1/models", headers={"x-forwarded-for": "192.0.2.7"})
    client.get("/v1/models")
    first, second = wait_for(lines, 2)
    assert (first["client"], second["client"]) == ("192.0.2.7", "127.0.0.1")


def test_other_requests_have_a_short_one(client, lines):
    client.get("/v1/models?key=hidden", headers={"x-request-id": "r-2"})
    client.get("/no%0Asuch route")
    first, second = wait_for(lines, 2)
    assert (first["path"], first["status"], first["request_id"]) == ("/v1/models", 200, "r-2")
    assert second["status"] == 404 and "prompts" not in second
    assert all("\n" not in line for line in lines(HumanFormatter()))


def test_a_client_that_leaves_is_logged_as_such(client, engine, lines):
    engine.hold_after = 1
    with client.stream("POST", "/v1/completions", json={"prompt": "abc", "stream": True}) as answer:
        next(answer.iter_bytes())
    (line,) = wait_for(lines, 1)
    assert (line["finish_reasons"], line["stream"], line["status"]) == (["abort"], True, 200)
    assert line["completion_tokens"] == 1


def test_no_line_holds_text_keys_or_queries(serve, lines):
    client = serve(api_key="k-12345")
    headers = {"authorization": "Bearer k-12345"}
    chat = {"messages": [{"role": "user", "content": "my password is hunter2"}], "max_tokens": 4}
    client.post("/v1/chat/completions?token=q-999", json=chat, headers=headers)
    client.post("/v1/completions", json={"prompt": "hunter2"}, headers={"authorization": "k-777"})
    client.post("/v1/completions", content=b'{"prompt": hunter2', headers=headers)
    wait_for(lines, 3)
    text = "\n".join([*lines(), *lines(HumanFormatter())])
    for secret in ("hunter2", "k-12345", "k-777", "q-999", "Grüße"):
        assert secret not in text


def test_lines_can_be_left_out(serve, lines):
    client = serve(disable_log_requests=True)
    client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    client.get("/v1/models")
    other = serve(disable_uvicorn_access_log=True)
    other.get("/v1/models")
    other.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    first, second = wait_for(lines, 2)
    assert (first["path"], second["path"]) == ("/v1/models", "/v1/completions")
