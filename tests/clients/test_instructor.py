"""Instructor's structured answers, in its modes for OpenAI's clients."""

from __future__ import annotations

import asyncio

import pytest

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
openai = pytest.importorskip("openai", reason="run scripts/test_clients")
instructor = pytest.importorskip("instructor", reason="run scripts/test_clients")

FIELDS = {
    "model": "quire-tiny",
    "messages": [{"role": "user", "content": "Who is it?"}],
    "max_tokens": 200,
    "temperature": 0,
}


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


def wrapped(kind, base_url, key, mode):
    return instructor.from_openai(kind(base_url=base_url, api_key=key, max_retries=0), mode=mode)


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_modes(base_url, key, mode):
    client = wrapped(openai.OpenAI, base_url, key, instructor.Mode[mode])
    person = client.chat.completions.create(response_model=Person, max_retries=0, **FIELDS)
    assert isinstance(person, Person)
    _, raw = client.chat.completions.create_with_completion(
        response_model=Person, max_retries=0, **FIELDS
    )
    assert raw.usage.completion_tokens > 0


def test_responses(base_url, key):
    client = wrapped(openai.OpenAI, base_url, key, instructor.Mode.RESPONSES_TOOLS)
    person = client.responses.create(
        model="quire-tiny", input="Who is it?", response_model=Person, max_retries=0,
        max_output_tokens=200,
    )  # fmt: skip
    assert isinstance(person, Person)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_partial_and_async(base_url, key, mode):
    client = wrapped(openai.OpenAI, base_url, key, instructor.Mode[mode])
    pieces = list(client.chat.completions.create_partial(response_model=Person, **FIELDS))
    assert Person(**pieces[-1].model_dump()) and len(pieces) > 1
    client = wrapped(openai.AsyncOpenAI, base_url, key, instructor.Mode[mode])
    asked = client.chat.completions.create(response_model=Person, max_retries=0, **FIELDS)
    assert isinstance(asyncio.run(asked), Person)
