"""Anthropic's routes: answers, streams, calls, counts, models, keys and errors."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.core.config import EngineConfig, ModelOptions
from quire.core.errors import GRAMMAR_LIMIT, CapacityError, EngineDeadError
from quire.server.access.authentication import scope_of
from quire.text.chat_template import ChatTemplate
from tests.server.test_tools import CALL, TEMPLATE, TWO

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = {"role": "user", "content": "Weather?"}
BODY = {"model": "quire-tiny", "max_tokens": 2000, "messages": [HELLO]}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [
    {"name": "get_weather", "input_schema": CITY},
    {"name": "now", "input_schema": {"type": "object"}},
]
THEIRS = {"anthropic-version": "2023-06-01"}
BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {Rome}}\n</tool_call>'
EVERYTHING = f"<think>\nHm, where?\n</think>\n\n{TWO}\nBoth at once.\n{CALL}"


@pytest.fixture
def calling(serve, engine, tokenizer, monkeypatch):
    """A client of a model whose template shows tools and turns thinking on."""
    template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    engine.max_model_len = 4096
    return serve()


def events(response):
    """Return the events of a stream, whose names are their types."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, rest = response.text.split("\n\n")
    assert rest == ""
    found = []
    for part in parts:
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def joined(found):
    """Put a stream together as Anthropic's own client does."""
    start, *middle, last, stop = found
    assert start["type"] == "message_start" and last["type"] == "message_delta"
    assert stop == {"type": "message_stop"}
    message, inputs, is_open = start["message"], {}, False
    assert message["content"] == [] and message["stop_reason"] is None
    for event in middle:
        index = event["index"]
        if event["type"] == "content_block_start":
            assert not is_open and index == len(message["content"])
            message["content"].append(event["content_block"])
            is_open = True
        elif event["type"] == "content_block_stop":
            assert is_open and index == len(message["content"]) - 1
            is_open = False
        else:
            assert is_open and event["type"] == "content_block_delta"
            delta, block = event["delta"], message["content"][index]
            kind = delta.pop("type").removesuffix("_delta")
            if kind == "input_json":
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
                block["input"] = inputs[index]
            elif kind == "signature":
                block["signature"] = delta["signature"]
            else:
                assert delta[kind], "no empty pieces"
                block[kind] += delta[kind]
    assert not is_open
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    message |= last["delta"]
    message["usage"] |= last["usage"]
    return message


def without_ids(message):
    """Return a message without what is drawn anew for each."""
    assert message["id"].startswith("msg_")
    content = []
    for block in message["content"]:
        assert block.get("id", "toolu_").startswith("toolu_")
        content.append({name: value for name, value in block.items() if name != "id"})
    return {**message, "id": "", "content": content}


def error_of(response, status, kind):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return body["error"]["message"]


def test_whole_and_streamed(client, engine):
    body = BODY | {"max_tokens": 30}
    answer = client.post(MESSAGES, json=body)
    prompt = client.post("/tokenize", json={"messages": [HELLO]}).json()["count"]
    num_tokens = len(engine.tokenizer.encode(engine.text)) + 1
    usage = {
        "input_tokens": prompt - 2, "output_tokens": num_tokens, "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 0,
    }  # fmt: skip
    message = answer.json()
    assert message == {
        "id": f"msg_{answer.headers['request-id']}",
        "type": "message", "role": "assistant", "model": "quire-tiny",
        "content": [{"type": "text", "text": engine.text}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    found = events(client.post(f"{MESSAGES}?beta=true", json=body | {"stream": True}))
    assert [event["type"] for event in found[:2]] == ["message_start", "content_block_start"]
    first = found[0]["message"]["usage"]
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (prompt - 2, 2)
    assert without_ids(joined(found)) == without_ids(message)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, None])
def test_a_stream_is_the_whole_wherever_it_is_cut(calling, engine, size, thinking):
    engine.text = EVERYTHING if thinking is None else EVERYTHING.removeprefix("<think>\n")
    body = BODY | {"tools": TOOLS, "thinking": thinking}
    message = calling.post(MESSAGES, json=body).json()
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text", "tool_use"]
    thought, text, rome, now, more, again = message["content"]
    assert thought == {"type": "thinking", "thinking": "Hm, where?", "signature": "unsigned"}
    assert text["text"].strip() == "Let me see." and "Both at once." in more["text"]
    assert (rome["name"], rome["input"]) == ("get_weather", {"city": "Rome"})
    assert (now["name"], now["input"]) == ("now", {})
    assert again["input"] == {"city": "Rome"} and again["id"] != rome["id"]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    stream = body | {"stream": True, "stream_interval": size}
    streamed = joined(events(calling.post(MESSAGES, json=stream)))
    assert without_ids(streamed) == without_ids(message)


def test_arguments_flow_as_they_are_written(calling, engine):
    engine.text = CALL
    found = events(calling.post(MESSAGES, json=BODY | {"tools": TOOLS, "stream": True}))
    (start,) = (event for event in found if event["type"] == "content_block_start")
    assert start["content_block"]["input"] == {}
    pieces = [e["delta"]["partial_json"] for e in found if e["type"] == "content_block_delta"]
    assert len(pieces) > 3 and json.loads("".join(pieces)) == {"city": "Rome"}


def test_omitted_thoughts_leave_an_empty_block(calling, engine):
    engine.text = EVERYTHING.removeprefix("<think>\n")
    body = BODY | {"thinking": {"type": "adaptive", "display": "omitted"}}
    message = calling.post(MESSAGES, json=body).json()
    assert message["content"][0] == {"type": "thinking", "thinking": "", "signature": "unsigned"}
    streamed = joined(events(calling.post(MESSAGES, json=body | {"stream": True})))
    assert without_ids(streamed) == without_ids(message)


def test_thinking_is_off_until_it_is_asked_for(calling, engine, tokenizer):
    prompts = {}
    for name, thinking in (
        ("absent", None), ("off", {"type": "disabled"}), ("on", {"type": "adaptive"}),
    ):  # fmt: skip
        body = BODY | {"thinking": thinking}
        del body["max_tokens"]
        prompts[name] = calling.post(COUNT, json=body).json()["input_tokens"]
    assert prompts["absent"] == prompts["off"] < prompts["on"]


def test_a_model_that_does_not_think_says_so(client):
    answer = client.post(MESSAGES, json=BODY | {"thinking": {"type": "adaptive"}})
    assert answer.status_code == 200 and answer.headers["x-ignored-params"] == "thinking"


@pytest.mark.parametrize(
    "value", ['"\\ud800"', "1e999", "9" * 5000, "NaN", "[" * 3000 + "]" * 3000]
)
def test_a_call_that_no_object_can_hold_is_told_with_the_others(calling, engine, value):
    engine.text = f"Well.{CALL.replace(chr(34) + 'Rome' + chr(34), value)}{CALL}"
    engine.max_model_len = 32768
    message = calling.post(MESSAGES, json=BODY | {"tools": TOOLS, "max_tokens": 9000}).json()
    (error,) = message["tool_call_errors"]
    assert error.startswith("[tool_calls[0].function.arguments] must be a JSON object; ")
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
    assert message["content"][1]["input"] == {"city": "Rome"}
    assert message["stop_reason"] == "tool_use"
    stream = BODY | {"tools": TOOLS, "stream": True, "max_tokens": 9000}
    last = events(calling.post(MESSAGES, json=stream))[-2]
    assert last["tool_call_errors"] == [error] and last["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_cannot_be_made_is_told(calling, engine):
    engine.text = BROKEN
    message = calling.post(MESSAGES, json=BODY | {"tools": TOOLS}).json()
    assert message["content"] == [] and message["stop_reason"] == "end_turn"
    (error,) = message["tool_call_errors"]
    assert "must be a JSON object" in error


def test_why_an_answer_ended(client, engine):
    longest, prompt = engine.max_model_len, client.post(COUNT, json={"messages": [HELLO]}).json()
    answer = client.post(MESSAGES, json=BODY | {"max_tokens": 3}).json()
    assert answer["stop_reason"] == "max_tokens" and answer["usage"]["output_tokens"] == 3
    engine.text = "x" * 1000
    answer = client.post(MESSAGES, json=BODY | {"max_tokens": 32000}).json()
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["output_tokens"] == longest - prompt["input_tokens"]
    assert engine.params[-1].max_tokens == answer["usage"]["output_tokens"]
    engine.text = ""
    answer = client.post(MESSAGES, json=BODY).json()
    assert (answer["content"], answer["stop_reason"]) == ([], "end_turn")
    streamed = joined(events(client.post(MESSAGES, json=BODY | {"stream": True})))
    assert without_ids(streamed) == without_ids(answer)


def ask(live, **fields):
    """Return a greedy answer of the real engine."""
    body = {"messages": [HELLO], "max_tokens": 16, "temperature": 0, **fields}
    answer = live.http.post(MESSAGES, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_text_is_that_of_chat_completions(live):
    chat = {"messages": [{"role": "system", "content": "Be brief."}, HELLO]}
    body = chat | {"max_tokens": 16, "temperature": 0}
    (choice,) = live.http.post("/v1/chat/completions", json=body).json()["choices"]
    answer = ask(live, system=[{"type": "text", "text": "Be brief."}])
    assert "".join(block["text"] for block in answer["content"]) == choice["message"]["content"]
    again = ask(live, system="Be brief.")
    assert again["content"] == answer["content"]
    assert again["usage"]["cache_read_input_tokens"] > 0
    names = ("input_tokens", "cache_read_input_tokens")
    lengths = {sum(one["usage"][name] for name in names) for one in (answer, again)}
    assert len(lengths) == 1


def test_a_stop_sequence_is_named_and_not_shown(live):
    text = ask(live)["content"][0]["text"]
    stop = text[4:6]
    answer = ask(live, stop_sequences=["never so", stop])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert answer["content"][0]["text"] == text[: text.index(stop)]


def test_a_prefill_is_gone_on_with(live):
    text = ask(live)["content"][0]["text"]
    given = {"role": "assistant", "content": [{"type": "text", "text": text[:5]}]}
    answer = ask(live, messages=[HELLO, given], max_tokens=8)
    asked = [HELLO, {"role": "assistant", "content": text[:5]}]
    body = {
        "messages": asked, "continue_final_message": True, "add_generation_prompt": False,
        "max_tokens": 8, "temperature": 0,
    }  # fmt: skip
    (choice,) = live.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert "".join(b["text"] for b in answer["content"]) == choice["message"]["content"]


def test_a_schema_is_followed(live):
    schema = {
        "type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"],
        "additionalProperties": False,
    }  # fmt: skip
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = ask(live, output_config=form, max_tokens=64)
    assert json.loads(answer["content"][0]["text"]) == {"a": "x"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief.", "messages": [HELLO, {"role": "assistant", "content": "Well,"}]},
        {"tools": TOOLS, "tool_choice": {"type": "auto"}},
        {"tools": TOOLS, "thinking": {"type": "adaptive"}},
        {
            "messages": [
                HELLO,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "t", "name": "now", "input": {"utc": True}}
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": "noon"}],
                },
            ]
        },
    ],
)
def test_a_count_is_that_of_the_prompt(calling, fields):
    count = calling.post(COUNT, json={"messages": [HELLO], **fields}).json()
    usage = calling.post(MESSAGES, json=BODY | fields).json()["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert count == {"input_tokens": total}


def test_a_count_waits_for_nobody_and_has_no_limit(client, engine):
    engine.hold_after = 0
    long = {"messages": [{"role": "user", "content": "x" * 1000}]}
    assert client.post(COUNT, json=long).json()["input_tokens"] > 1000 > engine.max_model_len
    assert not engine.params, "nothing is asked of the engine"


def test_models_in_either_shape(client, engine):
    assert client.get("/v1/models").json()["object"] == "list"
    page = client.get("/v1/models", headers=THEIRS).json()
    (model,) = page["data"]
    assert {name: page[name] for name in ("has_more", "first_id", "last_id")} == {
        "has_more": False, "first_id": "quire-tiny", "last_id": "quire-tiny"
    }  # fmt: skip
    assert (model["type"], model["id"], model["max_input_tokens"]) == ("model", "quire-tiny", 256)
    assert client.get("/v1/models/quire-tiny", headers=THEIRS).json() == model
    answer = client.get("/v1/models/other", headers=THEIRS)
    assert "`other` does not exist" in error_of(answer, 404, "not_found_error")
    assert "code" in client.get("/v1/models/other").json()["error"]


def test_models_come_in_pages(serve):
    names = ("a", "b", "c")
    client = serve(EngineConfig(model=ModelOptions(model="m", served_model_name=names)))
    for query, found, more in (
        ("", "abc", False), ("?limit=2", "ab", True), ("?after_id=a", "bc", False),
        ("?before_id=c", "ab", False), ("?before_id=c&limit=1", "b", True),
        ("?after_id=c", "", False),
    ):  # fmt: skip
        page = client.get(f"/v1/models{query}", headers=THEIRS).json()
        assert "".join(model["id"] for model in page["data"]) == found, query
        assert page["has_more"] is more, query
    for query in ("limit=0", "limit=1001", "limit=x", "limit=", "after_id=d", "limit=²"):
        answer = client.get(f"/v1/models?{query}", headers=THEIRS)
        error_of(answer, 400, "invalid_request_error")


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


def test_wrong_tools_are_named_by_their_path(calling):
    schema = {"name": "f", "input_schema": {"type": "string"}}
    for fields, where in (
        ({"tools": [schema]}, "[tools[0].input_schema]"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "[tools[1].name]"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "[tool_choice.name]"),
        ({"tool_choice": {"type": "any"}}, "[tool_choice]"),
    ):
        for path in (MESSAGES, COUNT):
            answer = calling.post(path, json=BODY | fields)
            assert error_of(answer, 400, "invalid_request_error").startswith(where)


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
    engine.end_reason = f"{GRAMMAR_LIMIT} stay within the limits; got more."
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
    answer = serve().post(MESSAGES, json=BODY | effort)
    assert answer.headers["x-ignored-params"] == "output_config.effort"


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
    while engine.open_requests:
        time.sleep(0.005)
    assert engine.ended == ["closed"]
