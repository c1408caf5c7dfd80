"""Structured output over HTTP: every way to ask for it, and what a refusal says."""

from __future__ import annotations

import json
import re

import openai
import pytest

from quire.core.structured_outputs import grammar_limit

HELLO = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
BAD = {"properties": {"a": {"type": "array", "uniqueItems": True}}}


def chat(live, **fields):
    return live.openai.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=60, **fields
    )


def content(live, **fields):
    (choice,) = chat(live, **fields).choices
    assert choice.finish_reason == "stop"
    return choice.message.content


def response_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": response_format(SCHEMA)},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
        {"extra_body": {"structured_outputs": {"json": json.dumps(SCHEMA)}}},
        {"extra_body": {"guided_json": SCHEMA}},
    ],
)
def test_json_schema(live, fields):
    value = json.loads(content(live, **fields))
    assert list(value) == ["a"]
    assert 0 <= value["a"] <= 99


@pytest.mark.parametrize("ask", [lambda **f: {"structured_outputs": f}, lambda **f: {
    f"guided_{name}": value for name, value in f.items()
}])  # fmt: skip
def test_regex_choice_and_grammar(live, ask):
    assert re.fullmatch("[0-9]{3}", content(live, extra_body=ask(regex="[0-9]{3}")))
    assert content(live, extra_body=ask(choice=["yes", "no"])) in ("yes", "no")
    assert content(live, extra_body=ask(grammar='start: "x" | "y"')) in ("x", "y")


def test_text_asks_for_nothing_and_json_object_for_an_object(live):
    answer = chat(live, response_format={"type": "text"}, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    asked = {"type": "json_object"}
    for seed in range(20):
        choice = chat(live, response_format=asked, seed=seed).choices[0]
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_completions_streamed_and_several(live):
    fields = {
        "model": "tiny", "prompt": ["A", "B"], "n": 2, "max_tokens": 30, "seed": 1,
        "extra_body": {"guided_regex": "[0-9]{2}-[a-z]{3}"},
    }  # fmt: skip
    whole = [choice.text for choice in live.openai.completions.create(**fields).choices]
    assert len(whole) == 4
    assert all(re.fullmatch("[0-9]{2}-[a-z]{3}", text) for text in whole)
    parts = [""] * 4
    for chunk in live.openai.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.text
    assert parts == whole


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": response_format(BAD)}, "response_format"),
        ({"extra_body": {"guided_json": BAD}}, "guided_json"),
        ({"extra_body": {"structured_outputs": {"json": BAD}}}, "structured_outputs"),
    ],
)
def test_a_keyword_that_cannot_be_enforced_is_pointed_at(live, fields, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(live, stream=stream, **fields)
    assert caught.value.param == param
    assert "#/properties/a/uniqueItems" in caught.value.message
    live.wait_until_idle()


def test_a_bad_regex_is_a_bad_request(live):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(live, extra_body={"guided_regex": "("})
    assert caught.value.param == "guided_regex"
    assert "unclosed group" in caught.value.message


def test_compilations_are_counted(live):
    before = live.metric("quire:grammar_compilation_time_seconds_count")
    for _ in range(2):
        content(live, extra_body={"guided_regex": "counted"})
    assert live.metric("quire:grammar_compilation_time_seconds_count") == before + 1
    assert live.metric("quire:grammar_compilation_time_seconds_sum") > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/chat/completions", {"guided_regex": "a"}, "guided_regex"),
        ("/api/chat", {"format": "json"}, "format"),
        ("/completion", {"prompt": "a", "json_schema": {}}, "json_schema"),
        ("/completion", {"prompt": "a", "grammar": 'root ::= "a"'}, "grammar"),
    ],
)
def test_a_limit_is_told_of_the_field_that_was_sent(client, engine, path, body, param, stream):
    """It was always told of ``structured_outputs``."""
    engine.end_after = 2
    engine.failure = grammar_limit("stay within the limits; got more.")
    answer = client.post(path, json={"messages": HELLO, "stream": stream, **body})
    assert stream or answer.status_code == 400
    found = [line for line in answer.text.splitlines() if '"error"' in line]
    error = json.loads(found[-1].removeprefix("data: "))
    error = error if isinstance(error["error"], str) else error["error"]
    assert (error["param"], error["code"]) == (param, 400)


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_met_after_some_tokens_is_the_requests_own_fault(live, stream):
    """It was a 500; this engine compiles in-process, without the server's check."""
    late = {"structured_outputs": {"grammar": 'start: "a"{1000000000}'}}
    with pytest.raises(openai.APIError, match="the grammar must stay within the limits") as caught:
        answer = chat(live, stream=stream, extra_body=late)
        assert stream and list(answer)
    assert caught.value.param == "structured_outputs"
    assert stream or isinstance(caught.value, openai.BadRequestError)
    live.wait_until_idle()


def test_json_has_little_white_space_or_none(live):
    """A random model wrote 33 characters of it wherever some was allowed."""
    loose = {"json": SCHEMA}
    tight = {"json": SCHEMA, "disable_any_whitespace": True}
    for seed in range(12):
        assert len(content(live, seed=seed, extra_body={"structured_outputs": loose})) < 90
        text = content(live, seed=seed, extra_body={"structured_outputs": tight})
        assert text == json.dumps(json.loads(text), separators=(",", ":"))
    with pytest.raises(openai.BadRequestError, match="disable_any_whitespace belongs to json"):
        chat(
            live, extra_body={"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}
        )
