"""OpenAI's agents SDK, over responses and chat completions."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.samples import QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
openai = pytest.importorskip("openai", reason="run scripts/test_clients")
agents = pytest.importorskip("agents", reason="run scripts/test_clients")


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture(params=["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
def make(request, base_url, key):
    """Return a function that makes an agent."""
    agents.set_tracing_disabled(True)

    def made(**fields):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)
        model = getattr(agents, request.param)("quire-tiny", openai_client=client)
        settings = agents.ModelSettings(temperature=0, max_tokens=120)
        return agents.Agent(name="A", model=model, **{"model_settings": settings, **fields})

    return made


def test_run_and_stream(make):
    async def both():
        whole = await agents.Runner.run(make(instructions="Be brief."), QUESTION)
        stream = agents.Runner.run_streamed(make(instructions="Be brief."), QUESTION)
        pieces = [
            event.data.delta
            async for event in stream.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        return whole, "".join(pieces), stream.final_output

    whole, text, final = asyncio.run(both())
    assert text == whole.final_output == final and text
    turns = [*whole.to_input_list(), {"role": "user", "content": "And of Italy?"}]
    assert asyncio.run(agents.Runner.run(make(), turns)).final_output


def test_structured_output(make):
    answer = asyncio.run(agents.Runner.run(make(output_type=Person), QUESTION))
    assert isinstance(answer.final_output, Person)


def test_tools(make):
    called = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        called.append(city)
        return f"sunny in {city}"

    agent = make(tools=[get_weather])
    answer = asyncio.run(agents.Runner.run(agent, "What is the weather in Paris?", max_turns=4))
    assert called == ["Paris"] and answer.final_output


def test_what_a_session_remembers(make):
    async def talk():
        session = agents.SQLiteSession("s")
        agent = make()
        await agents.Runner.run(agent, QUESTION, session=session)
        await agents.Runner.run(agent, "And of Italy?", session=session)
        return await session.get_items()

    assert len(asyncio.run(talk())) == 4
