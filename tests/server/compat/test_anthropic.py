"""Anthropic's routes: answers, streams, calls, counts, models, keys and errors."""

from __future__ import annotations

import json

import pytest

from quire.settings.config import EngineConfig, ModelOptions
from quire.text.templates.chat_template import ChatTemplate
from tests.server.compat.anthropic_client import (
    BODY,
    COUNT,
    HELLO,
    MESSAGES,
    THEIRS,
    error_of,
    events,
    joined,
    without_ids,
)
from tests.server.test_tools import CALL, TEMPLATE, TWO

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [
    {"name": "get_weather", "input_schema": CITY},
    {"name": "now", "input_schema": {"type": "object"}},
]
BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {Rome}}\n</tool_call>'
EVERYTHING = f"<think>\nHm, where?\n</think>\n\n{TWO}\nBoth at once.\n{CALL}"


@pytest.fixture
def calling(serve, engine, tokenizer, monkeypatch):
    """A client of a model whose template shows tools and turns thinking on."""
    template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    engine.max_model_len = 4096
    return serve()


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


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [
        ("timeout", None, ("pause_turn", None)),
        ("stop", "\n\nHuman:", ("stop_sequence", "\n\nHuman:")),
        ("stop", 5, ("end_turn", None)),
    ],
)
def test_how_the_engine_ends_an_answer(client, engine, finish, stop, expected):
    generate = engine.generate

    async def ending(request):
        async for output in generate(request):
            if output.finished:
                (completion,) = output.outputs
                completion.finish_reason, completion.stop_reason = finish, stop
            yield output

    engine.generate = ending
    message = client.post(MESSAGES, json=BODY).json()
    assert (message["stop_reason"], message["stop_sequence"]) == expected
    streamed = joined(events(client.post(MESSAGES, json=BODY | {"stream": True})))
    assert without_ids(streamed) == without_ids(message)


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


def test_a_count_waits_for_no_request_and_has_no_limit(client, engine):
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


def test_what_a_model_can_do(calling):
    """Its template turns thinking on and knows no efforts."""
    can = calling.get("/v1/models/quire-tiny", headers=THEIRS).json()["capabilities"]
    assert can["thinking"]["supported"] and can["thinking"]["types"]["adaptive"]["supported"]
    assert not can["effort"]["supported"] and not can["effort"]["high"]["supported"]
    assert can["structured_outputs"] == {"supported": True}
    assert can["pdf_input"] == can["context_management"] == {"supported": False}


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
    long = f"limit=00001{'0' * 5000}"
    for query in ("limit=0", "limit=1001", "limit=x", "limit=", "after_id=d", "limit=²", long):
        answer = client.get(f"/v1/models?{query}", headers=THEIRS)
        error_of(answer, 400, "invalid_request_error")


@pytest.mark.parametrize("choice", ["auto", "any"])
def test_agents_send_hundreds_of_tools(calling, engine, choice):
    engine.max_model_len = 1 << 20
    tools = [TOOLS[0] | {"name": f"tool_{index}"} for index in range(500)]
    body = BODY | {"tools": tools, "tool_choice": {"type": choice}, "max_tokens": 5}
    assert calling.post(MESSAGES, json=body).status_code == 200
    assert calling.post(COUNT, json=body | {"max_tokens": None}).json()["input_tokens"] > 10_000
    refused = calling.post(MESSAGES, json=body | {"tools": tools * 3})
    assert "at most 1024" in error_of(refused, 400, "invalid_request_error")


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
def test_a_thread_was_answered_without_what_it_holds(client, thread):
    """The clients' tool loops send their later turns without the earlier ones, unless told this."""
    answer = client.post(MESSAGES, json=BODY | {"thread": thread})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (
        error["type"] == "invalid_request_error" and "[thread] is not supported" in error["message"]
    )
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    other = client.post(MESSAGES, json=BODY | {"container": "c"}).json()["error"]
    assert other.keys() == {"type", "message"}


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
