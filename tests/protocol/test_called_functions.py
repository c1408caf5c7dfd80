"""Calls of a history, as clients of several servers keep them."""

import json

import pytest

from quire.protocol.chat_completion import ChatCompletionRequest
from quire.protocol.decode import decode_body


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
