"""Structured output and forced tools over HTTP, on tokenizers of every kind that can be served."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.llm.async_llm import AsyncLLM
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from quire.text.tokenizers.gguf_vocabulary import gguf_vocabulary
from tests.server.conftest import run_in_thread
from tests.sizes import sized
from tools.random_schemas import random_schema
from tools.small_tokenizers import MAKERS, small_checkpoint

KINDS = [*MAKERS, "gguf"]
HELLO = [{"role": "user", "content": "Hi"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo", "São Paulo"]}, "days": {"const": "a few"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


@pytest.fixture(scope="module", params=KINDS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, device: str
) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a random model with a tokenizer of one kind."""
    folder = tmp_path_factory.mktemp(request.param)
    of_text = folder
    if request.param == "gguf":
        small_checkpoint(folder, "sentencepiece")
        of_text = folder / "vocabulary.gguf"
        write_gguf(of_text, gguf_vocabulary(folder, 1024), [])
    else:
        small_checkpoint(folder, request.param)
    keywords = {"device": device, "memory": 64 * 2**20, "max_num_seqs": 8, "threads": 1}
    engine = AsyncLLM.from_config(
        EngineConfig.from_keywords(model=str(folder), tokenizer=str(of_text), **keywords)
    )
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    with (
        run_in_thread(Service(engine, engine.config, Shared(options))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    keywords = {"model": "", "messages": HELLO, "max_tokens": 400, "seed": 1, **fields}
    return client.chat.completions.create(**keywords)


def content(client: openai.OpenAI, **fields: Any) -> str:
    """Return a finished answer, which must be the same streamed."""
    (choice,) = chat(client, **fields).choices
    assert choice.finish_reason == "stop"
    parts = [
        chunk.choices[0].delta.content or ""
        for chunk in chat(client, stream=True, **fields)
        if chunk.choices
    ]
    assert "".join(parts) == choice.message.content
    return str(choice.message.content)


def ask(**constraint: Any) -> dict[str, Any]:
    return {"extra_body": {"structured_outputs": constraint}}


def test_each_kind_of_constraint(client: openai.OpenAI) -> None:
    assert content(client, **ask(regex=" ?x{2,30} end of it")).endswith("xx end of it")
    assert re.fullmatch("  [0-9]{3}[ab] É", content(client, **ask(regex="  [0-9]{3}[ab] É")))
    choice = ["first choice", " second choice", "SECOND <s>", "</s>", "\n"]
    for seed in range(sized(2, 8)):
        assert content(client, seed=seed, **ask(choice=choice)) in choice
    going_on = ask(grammar='start: ("go on "){1,4} "stop"')
    assert re.fullmatch("(go on ){1,4}stop", content(client, **going_on))
    assert json.loads(content(client, **ask(json=CITY)))["days"] == "a few"


def test_json_object(client: openai.OpenAI) -> None:
    for seed in range(sized(2, 6)):
        choice = chat(client, seed=seed, response_format={"type": "json_object"}).choices[0]
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("seed", range(sized(3, 8)))
def test_random_schemas(client: openai.OpenAI, seed: int) -> None:
    """All 500 are ``scripts/bench structured_outputs``."""
    schema = random_schema(seed)
    text = content(client, **ask(json=schema))
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def test_completions_go_on_from_a_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="", prompt=["A", "B "], n=2, max_tokens=60, **ask(regex="[0-9]{2} and more")
    )
    assert all(re.fullmatch("[0-9]{2} and more", choice.text) for choice in answer.choices)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_tools_are_forced_where_the_template_knows_none(client: openai.OpenAI, choice: Any) -> None:
    """The grammar alone forces them; the tools stand before the first message."""
    now: Any = {"type": "function", "function": {"name": "now", "parameters": CITY}}
    fields = {"tools": [TOOL, now], "tool_choice": choice, "parallel_tool_calls": False}
    answer = chat(client, **fields)
    assert answer.usage.prompt_tokens > chat(client, max_tokens=1).usage.prompt_tokens + 20
    (message,) = (choice.message for choice in answer.choices)
    (call,) = message.tool_calls
    assert message.content is None
    assert call.function.name in ("get_weather", "now")[isinstance(choice, dict) :]
    jsonschema.validate(json.loads(call.function.arguments), CITY)
    pieces = [
        call.function
        for chunk in chat(client, stream=True, **fields)
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert pieces[0].name == call.function.name
    assert "".join(piece.arguments or "" for piece in pieces) == call.function.arguments


@pytest.mark.parametrize("max_tokens", [1, 5, 12, 20])
def test_a_forced_call_that_is_cut_off_leaves_no_marks(
    client: openai.OpenAI, max_tokens: int
) -> None:
    """``<tool_call>`` and half of a name stood in the content."""
    fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": max_tokens}
    (choice,) = chat(client, **fields).choices
    assert choice.finish_reason == "length"
    assert not choice.message.content
    deltas = [c.choices[0].delta for c in chat(client, stream=True, **fields) if c.choices]
    assert not any(delta.content for delta in deltas)


def test_text_that_no_tokens_can_write_is_the_requests_own_fault(client: openai.OpenAI) -> None:
    """The grammar went on after it, so that the next token could not follow: a 500."""
    for constraint in ({"choice": ["кириллица"]}, {"json": {"enum": ["ab", "aб"]}}):
        for seed in range(sized(3, 6)):
            try:
                text = content(client, seed=seed, **ask(**constraint))
            except openai.BadRequestError as error:
                assert "what this model's tokens can write" in error.message
            else:
                assert text in ("кириллица", '"ab"', '"aб"')
