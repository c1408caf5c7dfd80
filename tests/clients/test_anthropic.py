"""Anthropic's own package: answers, streams, tools, an agent's loop, counts, models, errors."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.clients.samples import MESSAGES, MODEL, PERSON, QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
anthropic = pytest.importorskip("anthropic", reason="run scripts/test_clients")

#: The package has no argument for the temperature any more; the route has.
FIELDS = {
    "model": MODEL, "messages": MESSAGES, "max_tokens": 80, "extra_body": {"temperature": 0}
}  # fmt: skip
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture
def client(server_url, key):
    with anthropic.Anthropic(base_url=server_url, api_key=key, max_retries=0) as made:
        yield made


def test_create(client):
    message = client.messages.create(**FIELDS, system="Be brief.", stop_sequences=["\n\n\n"])
    (block,) = message.content
    assert block.type == "text" and block.text
    assert (message.role, message.model, message.stop_reason) == ("assistant", MODEL, "end_turn")
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 10
    assert message.usage.output_tokens > 0 and message._request_id


def test_stream(client):
    whole = client.messages.create(**FIELDS)
    assert "Paris" in whole.content[0].text
    with client.messages.stream(**FIELDS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    events = client.messages.create(**FIELDS, stream=True)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_why_it_stopped(client):
    message = client.messages.create(**FIELDS, stop_sequences=["aris"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "aris")
    assert message.content[0].text.endswith("P")
    message = client.messages.create(**FIELDS | {"max_tokens": 2})
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 2


def test_prefill(client):
    given = [*MESSAGES, {"role": "assistant", "content": "The capital of France is"}]
    message = client.messages.create(**FIELDS | {"messages": given})
    assert "Paris" in message.content[0].text and "capital" not in message.content[0].text


def test_count_is_what_the_answer_counts(client):
    fields = {"model": MODEL, "messages": WEATHER, "tools": [TOOL], "system": "Be brief."}
    count = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(**fields, max_tokens=2).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens
    beta = client.beta.messages.count_tokens(**fields, betas=["context-management-2025-06-27"])
    assert beta.input_tokens == count


def test_models(client):
    model, other = list(client.models.list(limit=1))
    assert other.id == "quire-tiny-vision"
    assert (model.id, model.type) == (MODEL, "model") and model.created_at.year > 2000
    assert client.models.retrieve(MODEL) == model
    can = model.capabilities
    assert can.structured_outputs.supported and not can.image_input.supported
    assert not can.thinking.types.enabled.supported and not can.effort.max.supported
    assert type(model).model_validate(model.model_dump()) == model


def test_tools_round_trip(client):
    fields = FIELDS | {"messages": WEATHER, "tools": [TOOL]}
    message = client.messages.create(**fields)
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    with client.messages.stream(**fields) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert json.loads("".join(pieces)) == call.input == streamed.content[-1].input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [
        *WEATHER,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    final = client.messages.create(**fields | {"messages": history})
    assert final.content[0].text and final.stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_forced_tools(client, choice):
    (call,) = client.messages.create(
        **FIELDS,
        tools=[TOOL | {"strict": True}],
        tool_choice={**choice, "disable_parallel_tool_use": True},
    ).content
    assert call.type == "tool_use" and set(call.input) == {"city"}


@pytest.mark.parametrize("stream", [False, True])
def test_an_agents_loop(client, stream):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city.

        Args:
            city: Its name.
        """
        asked.append(city)
        return f"sunny in {city}"

    runner = client.beta.messages.tool_runner(
        **FIELDS | {"messages": WEATHER}, tools=[get_weather], max_iterations=4, stream=stream
    )
    messages = [one.get_final_message() for one in runner] if stream else list(runner)
    assert asked == ["Paris"] and len(messages) == 2
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert messages[-1].content[0].text


def test_structured_output(client):
    form = {"format": {"type": "json_schema", "schema": PERSON}}
    message = client.messages.create(**FIELDS | {"max_tokens": 200}, output_config=form)
    assert json.loads(message.content[0].text).keys() == {"name", "age"}
    parsed = client.messages.parse(**FIELDS | {"max_tokens": 200}, output_format=Person)
    assert isinstance(parsed.parsed_output, Person)


def test_what_agents_send_with_every_request(client):
    ephemeral = {"type": "ephemeral", "ttl": "1h"}
    parts = [
        {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"},
        {"type": "text", "text": QUESTION, "cache_control": ephemeral},
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1"},
        {"type": "text", "text": "You are an agent.", "cache_control": ephemeral},
    ]
    message = client.beta.messages.create(
        model=MODEL,
        max_tokens=20000,
        messages=[{"role": "user", "content": parts}],
        system=system,
        tools=[TOOL | {"cache_control": ephemeral}],
        metadata={"user_id": "user_1_session_2"},
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        service_tier="auto",
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        extra_body={"temperature": 0},
        stop_sequences=["</never>"],
    )
    assert message.stop_reason in ("end_turn", "tool_use", "model_context_window_exceeded")
    assert message.usage.output_tokens > 0


def test_errors(client, server_url, key):
    with pytest.raises(anthropic.NotFoundError, match="does not exist") as error:
        client.messages.create(**FIELDS | {"model": "claude-none"})
    assert error.value.request_id and error.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.models.retrieve("claude-none")
    with pytest.raises(anthropic.AuthenticationError, match="x-api-key"):
        client.with_options(api_key="wrong").messages.create(**FIELDS)
    long = [{"role": "user", "content": "word " * 20000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: ") as error:
        client.messages.create(**FIELDS | {"messages": long})
    assert error.value.type == "invalid_request_error"
    with (
        pytest.raises(anthropic.BadRequestError, match="temperature"),
        client.messages.stream(**FIELDS | {"extra_body": {"temperature": -1}}) as stream,
    ):
        stream.until_done()
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]"):
        client.messages.create(**FIELDS | {"messages": [{"role": "user", "content": [image]}]})


def test_bearer_tokens_and_several_at_once(server_url, key):
    async def ask():
        async with anthropic.AsyncAnthropic(
            base_url=server_url, auth_token=key, max_retries=0
        ) as client:
            whole = client.messages.create(**FIELDS)
            calls = [client.messages.create(**FIELDS | {"max_tokens": n}) for n in range(2, 10)]

            async def streamed():
                async with client.messages.stream(**FIELDS) as stream:
                    return await stream.get_final_text()

            return await asyncio.gather(whole, streamed(), *calls)

    whole, text, *others = asyncio.run(ask())
    assert text == whole.content[0].text
    assert all(text.startswith(other.content[0].text) for other in others)
