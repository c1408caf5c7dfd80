"""The model that ships calls tools by itself: no flag, ``tool_choice`` left at ``auto``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from quire.checkpoints.embedded import EMBEDDED
from quire.llm.async_llm import AsyncLLM
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import run_in_thread


def function(name: str, **parameters: str) -> dict[str, Any]:
    """Return a tool as a request lists it; all its parameters are required."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [function("get_weather", city="string"), function("set_timer", minutes="integer")]


@pytest.fixture(scope="module")
def client(device: str) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a server with default options on the embedded model."""
    config = EngineConfig.from_keywords(
        model=EMBEDDED, device=device, memory=128 * 2**20, threads=1
    )
    engine = AsyncLLM.from_config(config)
    service = Service(
        engine, engine.config, Shared(ServerOptions(port=0, uvicorn_log_level="warning"))
    )
    with (
        run_in_thread(service) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def ask(client: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    return client.chat.completions.create(
        model=EMBEDDED, messages=messages, **{"tools": TOOLS, **fields}
    )


def calls_of(message: Any) -> list[tuple[str, Any]]:
    """Return name and arguments of a message's calls."""
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
    ]


@pytest.mark.parametrize(
    ("question", "result", "call", "fact"),
    [
        (
            "What is the weather in Paris?",
            '{"weather": "sunny"}',
            ("get_weather", {"city": "Paris"}),
            "sunny",
        ),
        (
            "Set a timer for 25 minutes.",
            '{"status": "ok"}',
            ("set_timer", {"minutes": 25}),
            "25",
        ),
    ],
)
def test_a_call_and_the_answer_from_its_result(client, question, result, call, fact) -> None:
    messages: list[Any] = [{"role": "user", "content": question}]
    choice = ask(client, messages).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert calls_of(choice.message) == [call]
    returned = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": result}
    choice = ask(client, [*messages, choice.message, returned]).choices[0]
    assert choice.finish_reason == "stop" and not choice.message.tool_calls
    assert fact in choice.message.content


def test_a_streamed_call(client) -> None:
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    name, arguments, reasons = "", "", []
    for chunk in ask(client, messages, stream=True):
        (choice,) = chunk.choices
        assert not choice.delta.content
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Rome"})
    assert reasons[-1] == "tool_calls"


def test_a_question_that_no_tool_helps_with(client) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    choice = ask(client, messages).choices[0]
    assert choice.finish_reason == "stop" and not choice.message.tool_calls
    assert choice.message.content == "The capital of France is Paris."


def test_none_and_one_call_only(client) -> None:
    """The other choices hold for a model that would call by itself, too."""
    question = "What is the weather in Oslo? What is the weather in Rome?"
    messages = [{"role": "user", "content": question}]
    expected = [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]
    assert calls_of(ask(client, messages).choices[0].message) == expected
    single = ask(client, messages, parallel_tool_calls=False).choices[0]
    assert single.finish_reason == "tool_calls" and calls_of(single.message) == expected[:1]
    none = ask(client, messages, tool_choice="none").choices[0]
    assert not none.message.tool_calls
