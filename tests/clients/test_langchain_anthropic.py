"""LangChain's Anthropic chat model."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.samples import QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
langchain_anthropic = pytest.importorskip("langchain_anthropic", reason="run scripts/test_clients")


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


class GetWeather(pydantic.BaseModel):
    """Weather of a city."""

    city: str = pydantic.Field(max_length=12)


@pytest.fixture
def model(server_url, key):
    return langchain_anthropic.ChatAnthropic(
        model="quire-tiny", base_url=server_url, api_key=key, max_tokens=80, temperature=0,
        max_retries=0,
    )  # fmt: skip


def test_invoke_and_stream(model):
    whole = model.invoke(QUESTION)
    assert "Paris" in whole.content and whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["stop_reason"] == "end_turn"
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == whole.content
    answers = model.batch([QUESTION, [("system", "Be brief."), ("human", QUESTION)]])
    assert answers[0].content == whole.content and len(answers) == 2


def test_async_stream(model):
    async def ask():
        return "".join([chunk.text async for chunk in model.astream(QUESTION)])

    assert "Paris" in asyncio.run(ask())


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model, method):
    assert isinstance(model.with_structured_output(Person, method=method).invoke(QUESTION), Person)


def test_tools(model):
    bound = model.bind_tools([GetWeather], tool_choice="any")
    answer = bound.invoke(QUESTION)
    (call,) = answer.tool_calls[:1]
    assert call["name"] == "GetWeather" and "city" in call["args"]
    pieces = bound.stream(QUESTION)
    total = next(pieces)
    for piece in pieces:
        total += piece
    assert total.tool_calls[0]["args"] == call["args"]
    results = [
        {"role": "tool", "content": "sunny", "tool_call_id": one["id"]} for one in answer.tool_calls
    ]
    assert model.invoke([("human", QUESTION), answer, *results]).content
