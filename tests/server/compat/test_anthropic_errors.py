"""Anthropic's routes: keys, wrong requests, failures, and what had no effect."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.core.errors import CapacityError, EngineDeadError
from quire.core.structured_outputs import grammar_limit
from quire.server.access.authentication import scope_of
from tests.server.compat.anthropic_client import BODY, COUNT, MESSAGES, THEIRS, error_of, events


def test_a_key_of_either_header(serve):
    client = serve(api_key=("k-1",))
    for headers, status in (
        ({"x-api-key": "k-1"}, 200), ({"authorization": "Bearer k-1"}, 200), ({}, 401),
        ({"x-api-key": "k-2"}, 401), ({"x-api-key": "Bearer k-1"}, 401), ({"x-api-key": ""}, 401),
        # One that is wrong is not made good by the other.
        ({"authorization": "Bearer k-2", "x-api-key": "k-1"}, 401),
        ({"authorization": "Bearer k-1", "x-api-key": "k-2"}, 200),
    ):  # fmt: skip
        answer = client.post(MESSAGES, json=BODY, headers=headers)
        assert answer.status_code == status, headers
        if status == 401:
            assert "x-api-key" in error_of(answer, 401, "authentication_error")
    assert client.get("/v1/models", headers={"x-api-key": "k-1"}).status_code == 200
    assert scope_of(MESSAGES) == scope_of(COUNT) == "infer"


@pytest.mark.parametrize(
    ("fields", "status", "kind", "message"),
    [
        ({"messages": []}, 400, "invalid_request_error", "[messages] must hold at least one"),
        ({"messages": 5}, 400, "invalid_request_error", "[messages]"),
        ({"max_tokens": None}, 400, "invalid_request_error", "[max_tokens]"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "[max_tokens] must be at least 1; got 0"),
        ({"temperature": -1}, 400, "invalid_request_error", "[temperature]"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "[stop_sequences]"),
        ({"model": "claude-x"}, 404, "not_found_error", "The model `claude-x` does not exist."),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "[messages[0].content[0].type] must not be image",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 300}]},
            400,
            "invalid_request_error",
            "prompt is too long: 319 tokens > 255 maximum",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 100_000}]},
            400,
            "invalid_request_error",
            "prompt is too long: at least 2997 tokens > 255 maximum",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_requests(client, fields, status, kind, message, stream):
    answer = client.post(MESSAGES, json=BODY | {"stream": stream} | fields)
    assert message in error_of(answer, status, kind)


def test_errors_of_every_layer(client, monkeypatch):
    error_of(client.post(MESSAGES, content="{"), 415, "invalid_request_error")
    json_type = {"content-type": "application/json"}
    for content in ("{", "[]", b"\xff", '{"messages":' * 9000):
        answer = client.post(MESSAGES, content=content, headers=json_type)
        error_of(answer, 400, "invalid_request_error")
    monkeypatch.setattr("quire.server.http.body.MAX_BODY_BYTES", 10)
    error_of(client.post(MESSAGES, json=BODY), 413, "request_too_large")
    error_of(client.get(MESSAGES), 405, "invalid_request_error")
    error_of(client.post(f"{MESSAGES}/batches", json={}), 404, "not_found_error")
    error_of(client.get("/v1/files", headers=THEIRS), 404, "not_found_error")
    assert "request-id" not in client.get("/version").headers


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry"),
    [
        (CapacityError("full", 2.5), 503, "overloaded_error", "3"),
        (EngineDeadError("dead"), 503, "overloaded_error", None),
        (RuntimeError("a secret"), 500, "api_error", None),
    ],
)
def test_failures(client, engine, error, status, kind, retry):
    engine.error, engine.fail_after = error, 0
    answer = client.post(MESSAGES, json=BODY)
    assert "secret" not in error_of(answer, status, kind)
    assert answer.headers.get("retry-after") == retry
    engine.fail_after = 2
    answer = client.post(MESSAGES, json=BODY | {"stream": True})
    found = events(answer)
    assert found[0]["type"] == "message_start"
    assert found[-1]["type"] == "error" and found[-1]["error"]["type"] == kind
    assert set(found[-1]) == {"type", "error"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_meets_a_limit_is_the_requests_own_fault(client, engine, stream):
    engine.end_after = 2
    engine.failure = grammar_limit("stay within the limits; got more.")
    form = {"format": {"type": "json_schema", "schema": {}}}
    answer = client.post(MESSAGES, json=BODY | {"stream": stream, "output_config": form})
    error = events(answer)[-1] if stream else answer.json()
    assert stream or answer.status_code == 400
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"


def test_a_server_that_does_not_stream(serve, engine):
    client = serve(decoupled=False)
    answer = client.post(MESSAGES, json=BODY | {"stream": True})
    assert "decoupled" in error_of(answer, 400, "invalid_request_error")
    assert client.post(MESSAGES, json=BODY).status_code == 200


def test_fields_without_effect_are_named_or_refused(serve):
    fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "speed": "fast"}
    names = "speed, thinking.budget_tokens, thinking"
    for path in (MESSAGES, COUNT):
        answer = serve().post(path, json=BODY | fields)
        ignored = answer.headers["x-ignored-params"]
        assert ignored.removeprefix("max_tokens, ") == names
        answer = serve(strict_params=True).post(path, json=BODY | fields)
        assert "--strict-params" in error_of(answer, 400, "invalid_request_error")
    effort = {"output_config": {"effort": "low"}}
    for path in (MESSAGES, COUNT):
        answer = serve().post(path, json=BODY | effort)
        assert answer.headers["x-ignored-params"].endswith("output_config.effort")


def test_a_full_queue(serve, engine):
    engine.hold_after = 0
    client = serve(max_num_queued_reqs=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.post, MESSAGES, json=BODY)
        while not engine.open_requests:
            time.sleep(0.005)
        for stream in (False, True):
            answer = client.post(MESSAGES, json=BODY | {"stream": stream})
            assert int(answer.headers["retry-after"]) >= 1
            error_of(answer, 429, "rate_limit_error")
        engine.released.set()
        assert waiting.result().status_code == 200


def test_a_client_that_goes_away_ends_its_request(client, engine):
    engine.hold_after = 1
    with client.stream("POST", MESSAGES, json=BODY | {"stream": True}) as first:
        assert next(first.iter_lines()) == "event: message_start"
    while not engine.ended:
        time.sleep(0.005)
    assert engine.ended == ["closed"] and not engine.open_requests
