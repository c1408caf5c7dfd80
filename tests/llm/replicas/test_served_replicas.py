"""Several engines over HTTP, by OpenAI's client: the answers of one, whatever is asked of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import openai
import pytest

from tests.llm.replicas.conftest import PATIENT
from tests.ports import free_ports
from tests.served_engines import total
from tests.servers import start_server
from tests.sizes import sized
from tools.serve_process import ServeProcess

MODEL = ("quire-tiny", "--threads", "1", "--memory", "600MiB", "--max-num-seqs", "8")
ADAPTERS = ("--enable-lora", "--lora-modules", "sql=quire-tiny-sql", "--spec-method", "ngram")
ROLES = ("--disaggregate", "1p1d", "--disaggregate-tokens", "64")
SITES = {
    "ranks": ("-dp", "2", "-tp", "2"),
    "roles": ROLES,
    "roles by TCP": (*ROLES, "--disaggregate-transport", "tcp"),
}
LONG = "A list of customers, with their names, towns and orders. " * 12 + "Name those in Rome."
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "is_new": {"type": "boolean"}},
    "required": ["age", "is_new"],
    "additionalProperties": False,
}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "customer", "schema": SCHEMA}}
ASKED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "n": 2},
    {"temperature": 0.9, "response_format": STRUCTURED},
]


@asynccontextmanager
async def connect(server: ServeProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{server.wait_ready()}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def ask(
    client: openai.AsyncOpenAI, model: str, text: str, **asked: Any
) -> tuple[list[Any], int]:
    """Return text, end and log-probabilities of each choice, and how many tokens were cached."""
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_completion_tokens=sized(12, 24),
        logprobs=True,
        seed=7,
        **asked,
    )
    choices = [
        (c.message.content, c.finish_reason, [(t.token, t.logprob) for t in c.logprobs.content])
        for c in answer.choices
        if c.logprobs is not None and c.logprobs.content is not None
    ]
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    return choices, answer.usage.prompt_tokens_details.cached_tokens or 0


async def ask_all(client: openai.AsyncOpenAI) -> list[Any]:
    """Return the answers of the model and of its adapter, the adapter's to a long prompt first."""
    found = []
    for model in ("sql", "quire-tiny"):
        for text, kinds in ((LONG, ASKED), ("Name all customers.", sized(ASKED[1:2], ASKED))):
            for asked in kinds:
                choices, _ = await ask(client, model, text, **asked)
                assert len(choices) == asked.get("n", 1)
                if "response_format" in asked and choices[0][1] == "stop":
                    assert json.loads(choices[0][0]).keys() == SCHEMA["properties"].keys()
                found.append(choices)
    return found


async def begin_stream(client: openai.AsyncOpenAI) -> Any:
    """Return a long answer that has begun: it holds prompts up, and they it."""
    stream = await client.chat.completions.create(
        model="quire-tiny",
        messages=[{"role": "user", "content": "Tell a story."}],
        max_completion_tokens=1500,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    await anext(aiter(stream))
    return stream


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """What one engine answers, which is right."""

    async def ask_one(server: ServeProcess) -> list[Any]:
        async with connect(server) as client:
            return await ask_all(client)

    with start_server([*MODEL, *ADAPTERS]) as server:
        return asyncio.run(ask_one(server))


@pytest.mark.parametrize("site", SITES)
async def test_answers_are_those_of_one_engine(expected: list[Any], site: str) -> None:
    with ExitStack() as stack:
        flags = SITES[site]
        if "tcp" in flags:
            flags = (*flags, "--master-port", str(free_ports() - 1))
        arguments = [*MODEL, *ADAPTERS, *flags]
        server = stack.enter_context(start_server(arguments, PYTHONPATH=PATIENT))
        async with connect(server) as client:
            for number in range(20):
                streams = [await begin_stream(client) for _ in range(2)]
                _, num_cached = await ask(client, "sql", f"{number}. {LONG}")
                is_apart = total(server.address, "quire:prefill_requests_total", place="apart") == 1
                if is_apart or site == "ranks":
                    break
                # The streams had ended before the prompt came: nothing was held up.
            if site != "ranks":
                assert is_apart and (num_cached or "TCP" in site), "an adapter's prompt, too"
            assert await ask_all(client) == expected
            for stream in streams:
                await stream.close()
            while total(server.address, "quire:num_requests_running"):
                pass  # a stream that no client reads ends
            assert total(server.address, "quire:num_kv_blocks", state="used") == 0
        assert server.end() == 0 and "Traceback" not in server.stderr
