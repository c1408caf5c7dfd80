"""LiteLLM's Anthropic route."""

from __future__ import annotations

import json

import pytest

from tests.clients.samples import MESSAGES, PERSON, TOOL

litellm = pytest.importorskip("litellm", reason="run scripts/test_clients")


@pytest.fixture
def fields(server_url, key):
    return {
        "model": "anthropic/quire-tiny", "api_base": server_url, "api_key": key,
        "messages": MESSAGES, "max_tokens": 80, "temperature": 0, "num_retries": 0,
    }  # fmt: skip


def test_completion_and_stream(fields):
    answer = litellm.completion(**fields)
    whole = answer.choices[0].message.content
    assert "Paris" in whole and answer.usage.completion_tokens > 0
    assert answer.choices[0].finish_reason == "stop"
    pieces = litellm.completion(**fields, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole


def test_json_schema(fields):
    kind = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = litellm.completion(**fields, response_format=kind)
    assert json.loads(answer.choices[0].message.content).keys() == {"name", "age"}


@pytest.mark.parametrize("stream", [False, True])
def test_tools(fields, stream):
    fields["messages"] = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = litellm.completion(**fields, tools=[TOOL], stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    fields["messages"] = [*fields["messages"], message.model_dump(), result]
    assert litellm.completion(**fields, tools=[TOOL]).choices[0].message.content


def test_errors(fields):
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**fields | {"temperature": -1})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**fields | {"api_key": "wrong"})
    long = [{"role": "user", "content": "word " * 20000}]
    with pytest.raises(litellm.ContextWindowExceededError, match="prompt is too long"):
        litellm.completion(**fields | {"messages": long})
