"""LiteLLM's Ollama routes."""

from __future__ import annotations

import pytest

from tests.clients.litellm_calls import check_schema, check_texts, check_tools
from tests.clients.samples import MESSAGES

litellm = pytest.importorskip("litellm", reason="run scripts/test_clients")


@pytest.fixture
def chat_fields(server_url, key):
    return {
        "model": "ollama_chat/quire-tiny", "api_base": server_url, "api_key": key,
        "messages": MESSAGES, "max_tokens": 80, "temperature": 0, "num_retries": 0,
    }  # fmt: skip


@pytest.fixture(params=["ollama_chat", "ollama"])
def fields(request, chat_fields):
    return chat_fields | {"model": f"{request.param}/quire-tiny"}


def test_completion_and_stream(fields):
    check_texts(fields)


def test_json_schema(fields):
    check_schema(fields)


@pytest.mark.parametrize("stream", [False, True])
def test_tools(chat_fields, stream):
    """Not on the other route, where LiteLLM writes them into the prompt."""
    check_tools(chat_fields, stream)


def test_embedding(server_url, key, monkeypatch):
    # This call of LiteLLM passes no key on.
    headers = litellm.module_level_client.client.headers
    monkeypatch.setitem(headers, "authorization", f"Bearer {key}")
    answer = litellm.embedding(model="ollama/quire-tiny", input=["one", "two"], api_base=server_url)
    assert len(answer.data) == 2 and len(answer.data[0]["embedding"]) > 10


def test_what_is_known_of_the_model(server_url, key, monkeypatch):
    """Asked of /api/show, where it passes no key on either."""
    headers = litellm.module_level_client.client.headers
    monkeypatch.setitem(headers, "authorization", f"Bearer {key}")
    monkeypatch.setenv("OLLAMA_API_BASE", server_url)
    found = litellm.get_model_info("ollama/quire-tiny")
    assert found["supports_function_calling"] is True
    assert found["max_tokens"] > 100


def test_errors(fields):
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**fields | {"temperature": -1})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**fields | {"api_key": "wrong"})
