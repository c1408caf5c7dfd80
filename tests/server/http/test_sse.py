"""The bytes on the wire, chunk by chunk."""

from __future__ import annotations

import json

import pytest

HELLO = [{"role": "user", "content": "Hi"}]
HEAD = (
    'data: {"id":0,"object":"chat.completion.chunk","created":0,"model":"quire-tiny",'
    '"system_fingerprint":0,"choices":['
)
CHAT = HEAD + '{"index":0,"delta":'
TEXT = HEAD.replace("chat.completion.chunk", "text_completion") + '{"index":0,"text":'
RUNNING = ',"logprobs":null,"finish_reason":null}]'
STOPPED = ',"logprobs":null,"finish_reason":"stop","stop_reason":null}]'


def usage(prompt: int, completion: int) -> str:
    return (
        f'"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + completion},'
        f'"completion_tokens":{completion},"prompt_tokens_details":{{"cached_tokens":2}}}}'
    )


def events(client, path, body):
    """Return the stream's events, the parts that differ from run to run blanked."""
    response = client.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    text = response.text
    first = json.loads(text.split("\n\n")[0].removeprefix("data: "))
    for name in ("id", "created", "system_fingerprint"):
        text = text.replace(json.dumps(first[name]), "0")
    assert text.endswith("\n\n")
    return text.split("\n\n")[:-1]


def test_chat_stream(client, engine):
    engine.text = "Aé"
    assert events(client, "/v1/chat/completions", {"messages": HELLO}) == [
        CHAT + '{"role":"assistant","content":""}' + RUNNING + "}",
        CHAT + '{"content":"A"}' + RUNNING + "}",
        CHAT + '{"content":"é"}' + RUNNING + "}",
        CHAT + "{}" + STOPPED + "}",
        "data: [DONE]",
    ]


def test_chat_stream_with_usage_on_every_chunk(client, engine):
    engine.text = "A"
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": HELLO, "stream_options": options}
    assert events(client, "/v1/chat/completions", body) == [
        CHAT + '{"role":"assistant","content":""}' + RUNNING + f",{usage(21, 1)}}}",
        CHAT + '{"content":"A"}' + RUNNING + f",{usage(21, 1)}}}",
        CHAT + "{}" + STOPPED + f",{usage(21, 2)}}}",
        HEAD + f"],{usage(21, 2)}}}",
        "data: [DONE]",
    ]


def test_usage_can_be_forced_by_the_server(serve, engine):
    engine.text = "A"
    client = serve(enable_force_include_usage=True)
    chunks = events(client, "/v1/chat/completions", {"messages": HELLO})
    assert ["usage" in chunk for chunk in chunks] == [True] * 4 + [False]


def test_completion_stream(client, engine):
    engine.text = "A"
    body = {"prompt": "Hi", "stream_options": {"include_usage": True}}
    assert events(client, "/v1/completions", body) == [
        TEXT + '"A"' + RUNNING + "}",
        TEXT + '""' + STOPPED + "}",
        HEAD.replace("chat.completion.chunk", "text_completion") + f"],{usage(2, 2)}}}",
        "data: [DONE]",
    ]


def test_every_choice_starts_with_its_role_and_ends_once(client, engine):
    engine.text = "AB"
    chunks = events(client, "/v1/chat/completions", {"messages": HELLO, "n": 3})
    for index in range(3):
        mine = [chunk for chunk in chunks if f'"index":{index},' in chunk]
        assert len(mine) == 4
        assert '"role":"assistant"' in mine[0] and '"finish_reason":"stop"' in mine[-1]
        assert sum('"finish_reason":"stop"' in chunk for chunk in mine) == 1


def test_a_failure_behind_the_headers_is_an_event(client, engine):
    engine.text, engine.fail_after = "AB", 1
    chunks = events(client, "/v1/chat/completions", {"messages": HELLO})
    assert chunks[1] == CHAT + '{"content":"A"}' + RUNNING + "}"
    assert chunks[2:] == [
        'data: {"error":{"message":"Internal server error.","type":"InternalServerError",'
        '"param":null,"code":500}}',
        "data: [DONE]",
    ]


def test_a_failed_request_tells_why(client, engine):
    engine.text, engine.end_after = "AB", 2
    chunks = events(client, "/v1/completions", {"prompt": "Hi"})
    error = json.loads(chunks[-2].removeprefix("data: "))["error"]
    assert error["code"] == 500 and "logits are not finite" in error["message"]
    assert chunks[-1] == "data: [DONE]"


@pytest.mark.parametrize("interval", [1, 1000])
def test_the_first_event_leaves_before_the_second_token_is_made(client, engine, interval):
    """Who reads along waits for one token, not for the answer."""
    engine.text, engine.hold_after = "A" * 199, 1  # and an end of sequence: 200 tokens
    body = {"prompt": "a", "stream": True, "max_tokens": 200, "stream_interval": interval}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        assert first["choices"][0]["text"] == "A"
        assert engine.ended == [] and not engine.released.is_set()
        engine.released.set()
        rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in rest) == "A" * 198


@pytest.mark.parametrize("fails", [False, True])
def test_headers_do_not_wait_for_a_slow_first_token(client, engine, monkeypatch, fails):
    monkeypatch.setattr("quire.server.http.sse.HEADERS_WITHIN_SECONDS", 0.01)
    engine.text, engine.hold_after = "A", 0
    with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
        assert response.status_code == 200
        assert engine.ended == []
        engine.fail_after = 1 if fails else None
        engine.released.set()
        chunks = response.read().decode().split("\n\n")[:-1]
    assert '"text":"A"' in chunks[0] and chunks[-1] == "data: [DONE]"
    assert ('"error"' in chunks[1]) == fails


def test_a_silent_stream_carries_comments_that_clients_skip(serve, engine, monkeypatch):
    """A proxy closes a connection on which nothing comes for a minute."""
    monkeypatch.setattr("quire.server.http.sse.HEADERS_WITHIN_SECONDS", 0.01)
    client = serve(sse_keep_alive_interval=0.02)
    engine.text, engine.hold_after = "AB", 1
    body = {"prompt": "a", "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        text = ""
        for part in response.iter_text():
            text += part
            if text.partition('"text":"A"')[2].count(": keep-alive\n\n") >= 3:
                engine.released.set()
    events = text.split("\n\n")[:-1]
    first = next(i for i, event in enumerate(events) if event.startswith("data: "))
    assert '"text":"A"' in events[first] and events[first + 1] == ": keep-alive"
    chunks = [json.loads(e.removeprefix("data: ")) for e in events[:-1] if e.startswith("data: ")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "AB"
    assert events[-1] == "data: [DONE]"
    assert all(event.startswith(("data: ", ": keep-alive")) for event in events)


def test_no_comments_without_an_interval(serve, engine, monkeypatch):
    monkeypatch.setattr("quire.server.http.sse.KEEP_ALIVE_SECONDS", 0.001)
    client = serve(sse_keep_alive_interval=0.0)
    engine.text = "AB" * 20
    response = client.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert ": keep-alive" not in response.text and response.text.endswith("data: [DONE]\n\n")
