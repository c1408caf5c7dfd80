"""What LiteLLM is asked for, whatever route it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.samples import PERSON, TOOL

litellm = pytest.importorskip("litellm", reason="run scripts/test_clients")


def check_texts(fields: dict[str, Any]) -> Any:
    """Check that an answer and its stream are the same; return the answer."""
    answer = litellm.completion(**fields)
    whole = answer.choices[0].message.content
    assert whole and answer.usage.completion_tokens > 0
    pieces = litellm.completion(**fields, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole
    return answer


def check_schema(fields: dict[str, Any]) -> None:
    """Check that an answer has the keys of a schema."""
    kind = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = litellm.completion(**fields, response_format=kind)
    assert json.loads(answer.choices[0].message.content).keys() == {"name", "age"}


def check_tools(fields: dict[str, Any], stream: bool) -> None:
    """Check that a tool is called, and that its result is answered."""
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = litellm.completion(**fields | {"messages": messages}, tools=[TOOL], stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*messages, message.model_dump(), result]
    asked = fields | {"messages": messages}
    assert litellm.completion(**asked, tools=[TOOL]).choices[0].message.content
