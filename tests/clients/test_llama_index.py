"""LlamaIndex's model for servers like OpenAI's."""

from __future__ import annotations

import pytest

from tests.clients.samples import QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
openai_like = pytest.importorskip("llama_index.llms.openai_like", reason="run scripts/test_clients")


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture
def model(base_url, key):
    return openai_like.OpenAILike(
        model="quire-tiny", api_base=base_url, api_key=key, is_chat_model=True, temperature=0,
        is_function_calling_model=True, context_window=2048, max_tokens=80, max_retries=0,
    )  # fmt: skip


def test_chat_and_stream(model):
    from llama_index.core.llms import ChatMessage

    messages = [ChatMessage(role="user", content=QUESTION)]
    whole = model.chat(messages).message.content
    assert "Paris" in whole
    assert "".join(piece.delta for piece in model.stream_chat(messages)) == whole


def test_complete_and_stream(model):
    whole = model.complete(QUESTION).text
    assert "Paris" in whole
    assert "".join(piece.delta for piece in model.stream_complete(QUESTION)) == whole


def test_tools(model):
    from llama_index.core.tools import FunctionTool

    def get_weather(city: str) -> str:
        """Weather of a city."""
        return f"sunny in {city}"

    tool = FunctionTool.from_defaults(get_weather)
    answer = model.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    (call,) = model.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather" and "city" in call.tool_kwargs


def test_structured_output(model):
    answer = model.as_structured_llm(Person).complete(QUESTION)
    assert isinstance(answer.raw, Person)
