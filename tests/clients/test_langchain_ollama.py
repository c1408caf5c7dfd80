"""LangChain's classes for Ollama."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.samples import MODEL, QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
langchain_ollama = pytest.importorskip("langchain_ollama", reason="run scripts/test_clients")


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def fields(server_url, key):
    headers = {"Authorization": f"Bearer {key}"}
    return {"model": MODEL, "base_url": server_url, "client_kwargs": {"headers": headers}}


@pytest.fixture
def model(fields):
    return langchain_ollama.ChatOllama(
        **fields, temperature=0, num_predict=80, num_ctx=1024, keep_alive="5m",
        validate_model_on_init=True,
    )  # fmt: skip


def test_invoke_and_stream(model):
    whole = model.invoke(QUESTION)
    assert "Paris" in whole.content and whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["done_reason"] == "stop"
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == whole.content
    answers = model.batch([QUESTION, [("system", "Be brief."), ("human", QUESTION)]])
    assert answers[0].content == whole.content and len(answers) == 2


def test_async_stream(model):
    async def ask():
        return "".join([chunk.text async for chunk in model.astream(QUESTION)])

    assert "Paris" in asyncio.run(ask())


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output(model, method):
    if method == "json_schema":
        found = model.with_structured_output(Person, method=method).invoke(QUESTION)
        assert isinstance(found, Person)
    else:
        bound = model.bind(format="json", stop=["}"])
        assert bound.invoke("A JSON object, please.").content.lstrip().startswith("{")


def test_tools(model):
    question = "What is the weather in Paris?"
    bound = model.bind_tools([get_weather])
    answer = bound.invoke(question)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    pieces = bound.stream(question)
    total = next(pieces)
    for piece in pieces:
        total += piece
    assert total.tool_calls[0]["args"] == call["args"]
    result = {"role": "tool", "content": get_weather(**call["args"]), "tool_call_id": call["id"]}
    assert bound.invoke([("human", question), answer, result]).content


def test_texts(fields):
    model = langchain_ollama.OllamaLLM(**fields, temperature=0, num_predict=20)
    whole = model.invoke(QUESTION)
    assert whole and "".join(model.stream(QUESTION)) == whole


def test_embeddings(fields):
    model = langchain_ollama.OllamaEmbeddings(**fields)
    first, second = model.embed_documents(["one", "two"])
    assert model.embed_query("one") == first and len(second) == len(first) > 10


def test_a_model_that_is_not_there_is_told(fields):
    with pytest.raises(ValueError, match="not found"):
        langchain_ollama.ChatOllama(**fields | {"model": "none"}, validate_model_on_init=True)
