"""LangChain's Anthropic chat model."""

from __future__ import annotations

import pytest

from tests.clients.langchain_calls import GetWeather, check_calls, check_structured, check_texts
from tests.clients.samples import QUESTION

langchain_anthropic = pytest.importorskip("langchain_anthropic", reason="run scripts/test_clients")


@pytest.fixture
def model(server_url, key):
    return langchain_anthropic.ChatAnthropic(
        model="quire-tiny", base_url=server_url, api_key=key, max_tokens=80, temperature=0,
        max_retries=0,
    )  # fmt: skip


def test_texts(model):
    assert check_texts(model).response_metadata["stop_reason"] == "end_turn"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model, method):
    check_structured(model, method)


def test_tools(model):
    bound = model.bind_tools([GetWeather], tool_choice="any")
    answer = check_calls(bound, QUESTION)
    call = answer.tool_calls[0]
    assert call["name"] == "GetWeather" and "city" in call["args"]
    results = [
        {"role": "tool", "content": "sunny", "tool_call_id": one["id"]} for one in answer.tool_calls
    ]
    assert model.invoke([("human", QUESTION), answer, *results]).content
