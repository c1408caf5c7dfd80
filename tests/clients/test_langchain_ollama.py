"""LangChain's classes for Ollama."""

from __future__ import annotations

import pytest

from tests.clients.langchain_calls import check_calls, check_structured, check_texts
from tests.clients.samples import MODEL, QUESTION

langchain_ollama = pytest.importorskip("langchain_ollama", reason="run scripts/test_clients")


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


def test_texts(model):
    assert check_texts(model).response_metadata["done_reason"] == "stop"


def test_structured_output(model):
    check_structured(model, "json_schema")
    bound = model.bind(format="json", stop=["}"])
    assert bound.invoke("A JSON object, please.").content.lstrip().startswith("{")


def test_tools(model):
    question = "What is the weather in Paris?"
    bound = model.bind_tools([get_weather])
    answer = check_calls(bound, question)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "content": get_weather(**call["args"]), "tool_call_id": call["id"]}
    assert bound.invoke([("human", question), answer, result]).content


def test_texts_of_the_older_class(fields):
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
