"""LangChain's chat model and embeddings."""

from __future__ import annotations

import pytest

from tests.clients.langchain_calls import GetWeather, check_calls, check_structured, check_texts
from tests.clients.samples import QUESTION

langchain_openai = pytest.importorskip("langchain_openai", reason="run scripts/test_clients")


@pytest.fixture
def model(base_url, key):
    return langchain_openai.ChatOpenAI(
        model="quire-tiny", base_url=base_url, api_key=key, temperature=0, max_tokens=80,
        max_retries=0,
    )  # fmt: skip


def test_texts(model):
    check_texts(model)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model, method):
    check_structured(model, method)


def test_json_mode(model):
    structured = model.bind(response_format={"type": "json_object"}, stop=["}"])
    assert structured.invoke("A JSON object, please.").content.lstrip().startswith("{")


def test_tools(model):
    bound = model.bind_tools([GetWeather], tool_choice="any")
    call = check_calls(bound, QUESTION).tool_calls[0]
    assert call["name"] == "GetWeather" and "city" in call["args"]


def test_embeddings(base_url, key):
    embeddings = langchain_openai.OpenAIEmbeddings(
        model="quire-tiny", base_url=base_url, api_key=key, check_embedding_ctx_length=False
    )
    assert len(embeddings.embed_documents(["one", "two"])) == 2
