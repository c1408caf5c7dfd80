"""What every chat model of LangChain is asked for, whatever server it was written for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clients.samples import QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


class GetWeather(pydantic.BaseModel):
    """Weather of a city."""

    city: str = pydantic.Field(max_length=12)


def check_texts(model: Any) -> Any:
    """Check that an answer, its stream and its part of a batch are the same; return the answer."""
    whole = model.invoke(QUESTION)
    assert "Paris" in whole.content and whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == whole.content
    answers = model.batch([QUESTION, [("system", "Be brief."), ("human", QUESTION)]])
    assert answers[0].content == whole.content and len(answers) == 2

    async def ask() -> str:
        return "".join([chunk.text async for chunk in model.astream(QUESTION)])

    assert asyncio.run(ask()) == whole.content
    return whole


def check_structured(model: Any, method: str) -> None:
    """Check that an answer is a :class:`Person`."""
    found = model.with_structured_output(Person, method=method).invoke(QUESTION)
    assert isinstance(found, Person)


def check_calls(bound: Any, question: str) -> Any:
    """Check that a stream brings the arguments of the answer's first call; return the answer."""
    answer = bound.invoke(question)
    pieces = bound.stream(question)
    total = next(pieces)
    for piece in pieces:
        total += piece
    assert total.tool_calls[0]["args"] == answer.tool_calls[0]["args"]
    return answer
