"""The ``openai`` package, at the version the others here pin."""

from __future__ import annotations

import json

import pytest

from tests.clients.samples import MESSAGES, TOOL

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
openai = pytest.importorskip("openai", reason="run scripts/test_clients")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture
def client(base_url, key):
    with openai.OpenAI(base_url=base_url, api_key=key, max_retries=0) as made:
        yield made


def test_chat_whole_and_streamed(client):
    fields = {"model": "quire-tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 30}
    whole = client.chat.completions.create(**fields)
    assert "Paris" in whole.choices[0].message.content
    stream = client.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_stream_helper(client):
    with client.chat.completions.stream(
        model="quire-tiny", messages=MESSAGES, temperature=0, max_tokens=30
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds
    assert "Paris" in final.choices[0].message.content


def test_parse_gives_the_model_that_was_asked_for(client):
    answer = client.chat.completions.parse(
        model="quire-tiny", messages=MESSAGES, response_format=Person, max_tokens=80
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_tools(client):
    fields = {"model": "quire-tiny", "messages": MESSAGES, "tools": [TOOL], "max_tokens": 80}
    answer = client.chat.completions.create(**fields, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and "city" in json.loads(call.function.arguments)
    history = [
        *MESSAGES,
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    again = client.chat.completions.create(**fields | {"messages": history, "tool_choice": "none"})
    assert again.choices[0].finish_reason in ("stop", "length")


async def _ask(base_url, key):
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        stream = await client.completions.create(
            model="quire-tiny", prompt="Once", max_tokens=5, stream=True
        )
        return [chunk.choices[0].text async for chunk in stream]


def test_async_completions(base_url, key):
    import asyncio

    assert "".join(asyncio.run(_ask(base_url, key)))


def test_models_embeddings_and_errors(client):
    assert [model.id for model in client.models.list()] == ["quire-tiny", "quire-tiny-vision"]
    vectors = client.embeddings.create(model="quire-tiny", input=["one", "two"])
    assert len(vectors.data) == 2 and len(vectors.data[0].embedding) > 10
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="quire-tiny", messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
