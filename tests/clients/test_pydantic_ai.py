"""Pydantic AI's agents, over chat completions and responses."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.samples import QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
pydantic_ai = pytest.importorskip("pydantic_ai", reason="run scripts/test_clients")
models = pytest.importorskip("pydantic_ai.models.openai", reason="run scripts/test_clients")
providers = pytest.importorskip("pydantic_ai.providers.openai", reason="run scripts/test_clients")

SETTINGS = {"temperature": 0, "max_tokens": 120}


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture(params=["chat", "responses"])
def model(request, base_url, key):
    provider = providers.OpenAIProvider(base_url=base_url, api_key=key)
    kinds = {"chat": models.OpenAIChatModel, "responses": models.OpenAIResponsesModel}
    return kinds[request.param]("quire-tiny", provider=provider)


def test_run_and_stream(model):
    agent = pydantic_ai.Agent(model, instructions="Be brief.", model_settings=SETTINGS)

    async def both():
        whole = await agent.run(QUESTION)
        async with agent.run_stream(QUESTION) as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True)]
        return whole, "".join(pieces)

    whole, text = asyncio.run(both())
    assert text == whole.output and whole.usage.output_tokens > 0
    more = asyncio.run(agent.run("And of Italy?", message_history=whole.all_messages()))
    assert more.output


class Anything(pydantic.BaseModel, extra="allow"):
    """All that a prompt without a grammar for its schema can promise of a small model."""


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("ToolOutput", Person), ("NativeOutput", Person), ("PromptedOutput", Anything)],
)
def test_structured_output(model, mode, kind):
    output = getattr(pydantic_ai, mode)(kind)
    agent = pydantic_ai.Agent(model, output_type=output, model_settings=SETTINGS, retries=0)
    assert isinstance(asyncio.run(agent.run(QUESTION)).output, kind)


def test_tools(model):
    agent = pydantic_ai.Agent(model, model_settings=SETTINGS)
    called = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Weather of a city."""
        called.append(city)
        return f"sunny in {city}"

    answer = asyncio.run(agent.run("What is the weather in Paris?"))
    assert called == ["Paris"] and answer.output
