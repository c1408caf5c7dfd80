"""LiteLLM's Anthropic route."""

from __future__ import annotations

import pytest

from tests.clients.litellm_calls import check_schema, check_texts, check_tools
from tests.clients.samples import MESSAGES

litellm = pytest.importorskip("litellm", reason="run scripts/test_clients")


@pytest.fixture
def fields(server_url, key):
    return {
        "model": "anthropic/quire-tiny", "api_base": server_url, "api_key": key,
        "messages": MESSAGES, "max_tokens": 80, "temperature": 0, "num_retries": 0,
    }  # fmt: skip


def test_completion_and_stream(fields):
    answer = check_texts(fields)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_json_schema(fields):
    check_schema(fields)


@pytest.mark.parametrize("stream", [False, True])
def test_tools(fields, stream):
    check_tools(fields, stream)


def test_errors(fields):
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**fields | {"temperature": -1})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**fields | {"api_key": "wrong"})
    long = [{"role": "user", "content": "word " * 20000}]
    with pytest.raises(litellm.ContextWindowExceededError, match="prompt is too long"):
        litellm.completion(**fields | {"messages": long})
