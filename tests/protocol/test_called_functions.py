"""Calls of a history, as clients of several servers keep them."""

import json

import pytest

from quire.protocol.decode import decode_body
from quire.protocol.ollama.ollama import OllamaChatRequest
from quire.protocol.openai.chat_completion import ChatCompletionRequest


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"city": "Zürich", "n": [1, None]}, '{"city": "Zürich", "n": [1, null]}'), ({}, "{}"),
     (None, ""), ("", ""), ('{"a":1}', '{"a":1}')],
)  # fmt: skip
def test_arguments_that_are_objects_were_refused(arguments, text):
    """Clients that ask Ollama keep objects, others null; vLLM takes both."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    decoded, ignored = decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    (made,) = decoded.messages[0].tool_calls
    assert made.for_template()["function"]["arguments"] == text and not ignored


@pytest.mark.parametrize("empty", [None, ""])
def test_calls_that_were_joined_from_a_stream_were_refused(empty):
    """Programs keep the last delta's id and type, which are null or empty in all but the first."""
    call = {"index": 0, "id": empty, "type": empty, "function": {"name": "f", "arguments": "{}"}}
    body = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    (made,) = (
        decode_body(json.dumps(body).encode(), ChatCompletionRequest)[0].messages[0].tool_calls
    )
    assert made.for_template() == {
        "type": "function", "function": {"name": "f", "arguments": "{}"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "text"),
    [({"arguments": None}, "{}"), ({}, "{}"), ({"arguments": '{"a": 1}'}, '{"a": 1}'),
     ({"arguments": {"a": 1}}, '{"a":1}')],
)  # fmt: skip
def test_arguments_that_are_no_object_were_refused_of_ollama_s_clients(given, text):
    """Ollama reads null and nothing as no arguments; OpenAI's clients keep text."""
    body = {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"} | given}]}]
    }
    decoded, ignored = decode_body(json.dumps(body).encode(), OllamaChatRequest)
    (made,) = decoded.our_request().messages[0].tool_calls
    assert made.function.arguments == text and not ignored
