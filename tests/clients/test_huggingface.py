"""``huggingface_hub.InferenceClient`` on the server's URL, as it talks to TGI."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.clients.samples import MESSAGES, PERSON, TOOL

hub = pytest.importorskip("huggingface_hub", reason="run scripts/test_clients")
errors = pytest.importorskip("huggingface_hub.errors", reason="run scripts/test_clients")

PROMPT = "The capital of France is"


@pytest.fixture
def client(server_url, key):
    return hub.InferenceClient(server_url, token=key, provider="hf-inference")


def test_text_generation(client):
    text = client.text_generation(PROMPT, max_new_tokens=12)
    details = client.text_generation(
        PROMPT, max_new_tokens=12, details=True, decoder_input_details=True
    )
    assert details.generated_text == text
    assert details.details.generated_tokens == len(details.details.tokens) <= 12
    assert details.details.prefill and details.details.finish_reason in ("length", "eos_token")
    assert client.text_generation(PROMPT, max_new_tokens=12, return_full_text=True) == PROMPT + text
    sampled = {"max_new_tokens": 12, "do_sample": True, "temperature": 1.5, "seed": 3, "top_k": 9}
    assert client.text_generation(PROMPT, **sampled) == client.text_generation(PROMPT, **sampled)


def test_text_generation_streamed(client):
    text = client.text_generation(PROMPT, max_new_tokens=12)
    assert "".join(client.text_generation(PROMPT, max_new_tokens=12, stream=True)).startswith(text)
    events = list(client.text_generation(PROMPT, max_new_tokens=12, stream=True, details=True))
    assert "".join(event.token.text for event in events if not event.token.special) == text
    assert events[-1].generated_text == text
    assert events[-1].details.generated_tokens == len(events)
    assert all(event.details is None for event in events[:-1])


def test_grammars(client):
    text = client.text_generation(
        PROMPT, max_new_tokens=100, grammar={"type": "json", "value": PERSON}
    )
    assert json.loads(text).keys() == {"name", "age"}
    number = {"type": "regex", "value": "[0-9]{3}"}
    assert client.text_generation(PROMPT, grammar=number).isdecimal()


def test_chat_completion(client):
    fields = {"messages": MESSAGES, "temperature": 0, "max_tokens": 30}
    whole = client.chat_completion(**fields)
    assert "Paris" in whole.choices[0].message.content and whole.usage.completion_tokens > 0
    chunks = list(client.chat_completion(**fields, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    named = client.chat.completions.create(model="tgi", **fields)
    assert named.choices[0].message.content == text and named.model == "quire-tiny"


def test_chat_completion_with_a_schema_and_tools(client):
    kind = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = client.chat_completion(MESSAGES, response_format=kind, max_tokens=100)
    assert json.loads(answer.choices[0].message.content).keys() == {"name", "age"}
    answer = client.chat_completion(MESSAGES, tools=[TOOL], tool_choice="required", max_tokens=80)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def test_what_is_served(client):
    info = client.get_endpoint_info()
    assert info["model_id"] == "quire-tiny" and info["max_total_tokens"] > 100
    assert client.health_check()


def test_errors(client, server_url):
    with pytest.raises(errors.ValidationError, match="temperature"):
        client.text_generation(PROMPT, temperature=-1.0)
    with pytest.raises(errors.ValidationError, match="context length"):
        list(client.text_generation(PROMPT, max_new_tokens=10**6, stream=True))
    with pytest.raises(errors.HfHubHTTPError) as error:
        hub.InferenceClient(server_url, token="wrong").text_generation(PROMPT)
    assert error.value.response.status_code == 401


def test_async(server_url, key):
    async def ask():
        client = hub.AsyncInferenceClient(server_url, token=key)
        pieces = await client.text_generation(PROMPT, max_new_tokens=12, stream=True)
        return "".join([piece async for piece in pieces])

    assert asyncio.run(ask())
