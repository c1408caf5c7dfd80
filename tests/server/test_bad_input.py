"""Wrong requests over HTTP: each gets its status and OpenAI's error body, and harms no other."""

from __future__ import annotations

import gzip
import json
import socket

import pytest

from quire.core.errors import CapacityError, EngineDeadError, RequestError
from quire.settings.config import EngineConfig, SchedulerOptions

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
JSON = {"content-type": "application/json"}


def error_of(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == status
    return body["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param", "message"),
    [
        (CHAT, "{", 400, "BadRequestError", None, "valid UTF-8 JSON"),
        (CHAT, b'{"messages": "\xff"}', 400, "BadRequestError", None, "valid UTF-8 JSON"),
        (CHAT, "[" * 50_000, 400, "BadRequestError", None, "got `array`"),
        (CHAT, '{"a":' * 50_000, 400, "BadRequestError", None, "nested too deeply"),
        (CHAT, {}, 400, "BadRequestError", "messages", "missing required field"),
        (CHAT, {"messages": []}, 400, "BadRequestError", "messages", "at least one"),
        (
            CHAT,
            {"messages": HELLO, "model": "gpt-4"},
            404,
            "NotFoundError",
            "model",
            "The model `gpt-4` does not exist.",
        ),
        (TEXT, {"prompt": "a", "model": "x"}, 404, "NotFoundError", "model", "`x`"),
        (CHAT, {"messages": HELLO, "temperature": -1}, 400, "BadRequestError", "temperature", "-1"),
        (CHAT, {"messages": HELLO, "n": 0}, 400, "BadRequestError", "n", "[1, 128]; got 0"),
        (CHAT, {"messages": HELLO, "n": 129}, 400, "BadRequestError", "n", "got 129"),
        (CHAT, {"messages": HELLO, "top_p": 0}, 400, "BadRequestError", "top_p", "(0, 1]"),
        (CHAT, {"messages": HELLO, "top_k": -2}, 400, "BadRequestError", "top_k", ">= -1"),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, 400, "BadRequestError", "max_tokens", "got 0"),
        (CHAT, {"messages": HELLO, "stop": [""]}, 400, "BadRequestError", "stop", "empty"),
        (
            CHAT,
            {"messages": HELLO, "tools": [{"function": {"name": "f"}}]},
            400,
            "BadRequestError",
            "tools",
            "chat template does not show tools",
        ),
        (
            CHAT,
            {"messages": HELLO, "response_format": {"type": "xml"}},
            400,
            "BadRequestError",
            "response_format.type",
            "xml",
        ),
        (CHAT, {"messages": HELLO, "priority": 1}, 400, "BadRequestError", "priority", "--sched"),
        (
            CHAT,
            {"messages": HELLO, "chat_template_kwargs": {"messages": []}},
            400,
            "BadRequestError",
            "chat_template_kwargs",
            "messages",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "BadRequestError",
            "messages[0].content[0].type",
            "image_url",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "x" * 300}]},
            400,
            "context_length_exceeded",
            "messages",
            "maximum context length is 256 tokens. However, you requested 320 tokens (319 in the",
        ),
        (
            CHAT,
            {"messages": HELLO, "max_tokens": 250},
            400,
            "context_length_exceeded",
            "messages",
            "271 tokens (21 in the messages, 250 in the completion)",
        ),
        (
            TEXT,
            {"prompt": ["ok", "x" * 256]},
            400,
            "context_length_exceeded",
            "prompt",
            "257 tokens (256 in the prompt, 1 in the completion)",
        ),
        (TEXT, {"prompt": "a", "suffix": "b"}, 400, "BadRequestError", "suffix", "[suffix]"),
        (TEXT, {"prompt": "a", "best_of": 2}, 400, "BadRequestError", "best_of", "equal to n"),
        (TEXT, {"prompt": "a", "guided_json": ""}, 400, "BadRequestError", "guided_json", "empty"),
        (
            TEXT,
            {"prompt": "a", "structured_outputs": {"regex": "a", "choice": ["b"]}},
            400,
            "BadRequestError",
            "structured_outputs",
            "exactly one",
        ),
        (
            TEXT,
            {"prompt": "a", "guided_regex": "a", "guided_choice": ["b"]},
            400,
            "BadRequestError",
            "guided_choice",
            "guided_regex and guided_choice",
        ),
        (
            CHAT,
            {"messages": HELLO, "response_format": {"type": "json_schema"}},
            400,
            "BadRequestError",
            "response_format.json_schema",
            "got none",
        ),
        (
            CHAT,
            {"messages": HELLO, "guided_regex": "a", "ignore_eos": True},
            400,
            "BadRequestError",
            "ignore_eos",
            "structured_outputs",
        ),
        ("/tokenize", {}, 400, "BadRequestError", "prompt", "either prompt or messages"),
        ("/tokenize", {"prompt": 5}, 400, "BadRequestError", "prompt", "got `int`"),
        ("/detokenize", {"tokens": [10**6]}, 400, "BadRequestError", "tokens", "below 259"),
        ("/detokenize", {"tokens": [-1]}, 400, "BadRequestError", "tokens[0]", ">= 0"),
        ("/v1/nothing", {}, 404, "NotFoundError", None, "/v1/nothing"),
        ("/v1/models", {}, 405, "MethodNotAllowedError", None, "Method Not Allowed"),
    ],
)
def test_wrong_requests(client, engine, path, body, status, kind, param, message):
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    error = error_of(client.post(path, content=content, headers=JSON), status)
    assert (error["type"], error["param"]) == (kind, param)
    assert message in error["message"]
    assert engine.params == [], "the engine must not see it"


def test_what_the_engine_refuses_is_named_as_it_was_sent(live):
    for path, body, param in (
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (TEXT, {"prompt": "a", "logprobs": 21}, "logprobs"),
        (TEXT, {"prompt": "a", "repetition_penalty": 1e-320}, "repetition_penalty"),
    ):
        error = error_of(live.http.post(path, json=body), 400)
        assert error["param"] == param and f"[{param}]" in error["message"]


def test_no_name_is_no_model(client):
    error = error_of(client.get("/v1/models/"), 404)
    assert error["message"] == "There is no route /v1/models/."


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT), ("/v1/v1/chat/completions", CHAT), (f"{CHAT}/", CHAT),
        ("/v1/chat/completion", CHAT), ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/anthropic/v1/messages", "/v1/messages"), ("/v1/api/chat", "/api/chat"),
        ("/v1/audio/speech", None), ("/nothing", None), (f"/{'v1/' * 2000}", None),
    ],
)  # fmt: skip
def test_a_route_that_is_not_names_the_one_that_was_meant(client, path, meant):
    """A base URL without /v1, or with it twice, was told as a route that is not there."""
    answer = client.post(path, json={"messages": HELLO})
    assert answer.status_code == 404
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    hint = f" Did you mean {meant}?" if meant else ""
    assert message == f"There is no route {path}.{hint}"


def test_a_method_that_is_not_names_those_that_are(client):
    answer = client.get(CHAT)
    assert error_of(answer, 405)["message"] == f"Method Not Allowed: {CHAT} takes POST."
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "nonsense"])
def test_compressed_bodies_are_refused_in_words(client, coding):
    headers = {**JSON, "content-encoding": coding}
    response = client.post(TEXT, content=gzip.compress(b'{"prompt": "a"}'), headers=headers)
    error = error_of(response, 415)
    assert "content-encoding" in error["message"] and coding in error["message"]
    assert response.headers["accept-encoding"] == "identity"
    plain = {**JSON, "content-encoding": "identity"}
    assert client.post(TEXT, content=b'{"prompt": "a"}', headers=plain).status_code == 200


def test_method_not_allowed_names_the_methods(client):
    response = client.get(CHAT)
    error_of(response, 405)
    assert response.headers["allow"] == "POST"


def test_body_limit_holds_with_and_without_a_length(client, monkeypatch):
    monkeypatch.setattr("quire.server.http.body.MAX_BODY_BYTES", 1000)
    body = json.dumps({"prompt": "x" * 2000}).encode()
    error_of(client.post(TEXT, content=body, headers=JSON), 413)
    pieces = (body[i : i + 100] for i in range(0, len(body), 100))
    error_of(client.post(TEXT, content=pieces, headers=JSON), 413)


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_media_types_are_refused(client, media_type):
    response = client.post(TEXT, content=b'{"prompt": "a"}', headers={"content-type": media_type})
    assert "application/json" in error_of(response, 415)["message"]


def test_a_media_type_with_a_charset_is_json(client):
    headers = {"content-type": "application/json; charset=utf-8"}
    response = client.post(TEXT, content=b'{"prompt": "a"}', headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (RequestError("[n] too many.", "n"), 400, "n"),
        (CapacityError("[engine] full.", 2.5), 503, None),
        (EngineDeadError("[engine] a step failed."), 503, None),
        (RuntimeError("a secret detail"), 500, None),
    ],
)
def test_failures_before_the_first_token_keep_their_status(
    client, engine, stream, error, status, param
):
    engine.fail_after, engine.error = 0, error
    response = client.post(TEXT, json={"prompt": "a", "stream": stream})
    body = error_of(response, status)
    assert body["param"] == param
    assert ("retry-after" in response.headers) == isinstance(error, CapacityError)
    assert "secret" not in response.text


def test_a_request_that_fails_in_the_engine_is_a_500(client, engine):
    engine.end_after = 2
    assert "not finite" in error_of(client.post(TEXT, json={"prompt": "a"}), 500)["message"]


def test_unknown_fields_are_ignored_aloud(client):
    response = client.post(TEXT, json={"prompt": "a", "foo": 1, "né\r\nX-Evil: 1": 2})
    assert response.status_code == 200
    assert response.headers["x-ignored-params"] == "foo, n%C3%A9%0D%0AX-Evil%3A%201"
    response = client.post(TEXT, json={"prompt": "a", "stream": True, "foo": 1})
    assert response.headers["x-ignored-params"] == "foo"
    assert "x-ignored-params" not in client.post(TEXT, json={"prompt": "a", "user": "u"}).headers


def test_many_unknown_fields_do_not_fill_the_header(client):
    response = client.post(TEXT, json={"prompt": "a", **{f"{'f' * 500}{i}": 1 for i in range(50)}})
    assert response.headers["x-ignored-params"].endswith(", ...")
    assert len(response.headers["x-ignored-params"]) < 3000


def test_unknown_fields_are_refused_under_strict_params(serve):
    response = serve(strict_params=True).post(TEXT, json={"prompt": "a", "foo": 1})
    assert error_of(response, 400)["param"] == "foo"


def test_priority_is_passed_on_where_it_counts(serve):
    config = EngineConfig(scheduler=SchedulerOptions(scheduling_policy="priority"))
    response = serve(config).post(TEXT, json={"prompt": "a", "priority": 1})
    assert response.status_code == 200


def test_garbage_instead_of_http_harms_no_request(client):
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(b"\x16\x03\x01\x00garbage\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert client.get("/health").status_code == 200
