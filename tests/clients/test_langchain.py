"""LangChain's chat model and embeddings."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.samples import QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
langchain_openai = pytest.importorskip("langchain_openai", reason="run scripts/test_clients")


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


class GetWeather(pydantic.BaseModel):
    """Weather of a city."""

    city: str = pydantic.Field(max_length=12)


@pytest.fixture
def model(base_url, key):
    return langchain_openai.ChatOpenAI(
        model="quire-tiny", base_url=base_url, api_key=key, temperature=0, max_tokens=80,
        max_retries=0,
    )  # fmt: skip


def test_invoke_and_stream(model):
    whole = model.invoke(QUESTION)
    assert "Paris" in whole.content and whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == whole.content
    answers = model.batch([QUESTION, [("system", "Be brief."), ("human", QUESTION)]])
    assert answers[0].content == whole.content and len(answers) == 2


def test_async_stream(model):
    async def ask():
        return "".join([chunk.content async for chunk in model.astream(QUESTION)])

    assert "Paris" in asyncio.run(ask())


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model, method):
    assert isinstance(model.with_structured_output(Person, method=method).invoke(QUESTION), Person)


def test_json_mode(model):
    structured = model.bind(response_format={"type": "json_object"}, stop=["}"])
    assert structured.invoke("A JSON object, please.").content.lstrip().startswith("{")


def test_tools(model):
    answer = model.bind_tools([GetWeather], tool_choice="any").invoke(QUESTION)
    assert answer.tool_calls[0]["name"] == "GetWeather" and "city" in answer.tool_calls[0]["args"]
    pieces = model.bind_tools([GetWeather], tool_choice="any").stream(QUESTION)
    total = next(pieces)
    for piece in pieces:
        total += piece
    assert total.tool_calls[0]["args"] == answer.tool_calls[0]["args"]


def test_embeddings(base_url, key):
    embeddings = langchain_openai.OpenAIEmbeddings(
        model="quire-tiny", base_url=base_url, api_key=key, check_embedding_ctx_length=False
    )
    assert len(embeddings.embed_documents(["one", "two"])) == 2
