"""LiteLLM's calls of a server like OpenAI's."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.clients.litellm_calls import check_schema, check_texts
from tests.clients.samples import MESSAGES, PERSON

litellm = pytest.importorskip("litellm", reason="run scripts/test_clients")


@pytest.fixture
def fields(base_url, key):
    return {
        "model": "openai/quire-tiny", "api_base": base_url, "api_key": key, "messages": MESSAGES,
        "max_tokens": 80, "temperature": 0, "num_retries": 0,
    }  # fmt: skip


def test_completion_and_stream(fields):
    assert "Paris" in check_texts(fields).choices[0].message.content


def test_async_completion(fields):
    answer = asyncio.run(litellm.acompletion(**fields))
    assert "Paris" in answer.choices[0].message.content


def test_json_schema(fields):
    check_schema(fields)


def test_tools(fields):
    tool = {"type": "function", "function": {"name": "note", "parameters": PERSON}}
    answer = litellm.completion(**fields, tools=[tool], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments).keys() == {"name", "age"}


def test_embedding(fields):
    asked = {name: fields[name] for name in ("model", "api_base", "api_key")}
    assert len(litellm.embedding(**asked, input=["one"]).data[0]["embedding"]) > 10


def test_errors_have_their_class(fields):
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**fields | {"max_tokens": 10**6})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**fields | {"api_key": "wrong"})
