"""``/v1/responses``: asked by OpenAI's own client, streamed and whole, kept and forgotten."""

from __future__ import annotations

import json
from contextlib import ExitStack

import openai
import pytest

from quire.protocol.openai.chat_completion import Message
from quire.protocol.openai.responses import ResponsesRequest
from quire.server.access.authentication import ApiKey
from quire.server.generation.response_store import ResponseStore, StoredResponse
from quire.text.templates.chat_template import ChatTemplate
from tests.server.test_tools import CALL, CITY, TEMPLATE, TWO

WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY}
NOW = {"type": "function", "name": "now"}


@pytest.fixture
def start(engine, tokenizer, serve, monkeypatch):
    """Serve the scripted model under a template with tools; returns OpenAI's client."""
    template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    engine.max_model_len = 4096
    prompts = []
    generate = engine.generate

    def listening(request):
        prompts.append(tokenizer.decode(request.prompt_token_ids, False))
        return generate(request)

    monkeypatch.setattr(engine, "generate", listening)

    with ExitStack() as clients:

        def run(**options):
            http = serve(**options)
            client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)
            client.prompts = prompts
            return clients.enter_context(client)

        # They hold themselves: the collector may find a socket before what would have closed it.
        yield run


@pytest.fixture
def client(start):
    return start()


def ask(client, **fields):
    return client.responses.create(**{"model": "", "input": "Weather?", **fields})


def without_ids(response):
    """Return an answer without what differs from call to call."""
    value = response if isinstance(response, dict) else response.to_dict()
    text = json.dumps(value)
    for item in [value, *value["output"]]:
        for name in ("id", "call_id"):
            if name in item:
                text = text.replace(item[name], name)
    made = json.loads(text)
    return {k: v for k, v in made.items() if k not in ("created_at", "completed_at")}


def test_text(engine, client):
    answer = ask(client, instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50)
    assert (answer.output_text, answer.status, answer.object) == (
        engine.text,
        "completed",
        "response",
    )
    assert answer.id.startswith("resp_") and answer.output[0].id.startswith("msg_")
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"a": "b"})
    assert client.prompts == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n"
    ]
    usage = answer.usage
    assert usage.input_tokens > 20 and usage.output_tokens == len(engine.text.encode()) + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens == 2
    assert usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Grüße 😀!", ["message"]),
        (TWO, ["message", "function_call", "function_call"]),
        (f"<think>\nhm\n</think>\n\nSo.{CALL}", ["reasoning", "message", "function_call"]),
        (f"{CALL}\nBye.", ["function_call", "message"]),
        ("", ["message"]),
    ],
)
def test_streamed_is_whole(engine, client, text, kinds):
    engine.text = text
    fields = {"tools": [WEATHER, NOW]}
    whole = ask(client, **fields)
    assert [item.type for item in whole.output] == kinds
    events = list(ask(client, stream=True, **fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0].response.output == [] and events[0].response.status == "in_progress"
    assert events[-1].type == "response.completed"
    assert without_ids(events[-1].response) == without_ids(whole)
    assert_consistent(events)


def assert_consistent(events):
    """Deltas joined are what the done events and the response say, in the right order."""
    final = events[-1].response.output
    for index, item in enumerate(final):
        own = [e for e in events if getattr(e, "output_index", None) == index]
        assert own[0].type == "response.output_item.added" and own[0].item.id == item.id
        assert own[-1].type == "response.output_item.done"
        assert own[-1].item.to_dict() == item.to_dict()
        deltas = "".join(e.delta for e in own if e.type.endswith(".delta"))
        text = item.arguments if item.type == "function_call" else item.content[0].text
        assert deltas == text
        done = [e for e in own if e.type.endswith(("text.done", "arguments.done"))]
        assert len(done) == 1 and getattr(done[0], "text", None) in (text, None)


def test_the_clients_own_stream_helper(engine, client):
    engine.text = "Hello."
    with client.responses.stream(model="", input="Hi") as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(texts) == stream.get_final_response().output_text == "Hello."


def test_a_loop_with_a_tool(engine, client):
    engine.text = CALL
    first = ask(client, tools=[WEATHER])
    call = first.output[0]
    assert (call.name, call.arguments, call.status) == (
        "get_weather", '{"city": "Rome"}', "completed",
    )  # fmt: skip
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    engine.text = "It is sunny."
    second = ask(client, input=[output], previous_response_id=first.id, tools=[WEATHER])
    assert second.output_text == "It is sunny."
    kept = client.prompts[-1]
    # The same, with nothing kept on the server.
    items = [{"role": "user", "content": "Weather?"}, call.to_dict(), output]
    ask(client, input=items, tools=[WEATHER], store=False)
    assert client.prompts[-1] == kept
    assert '{"name": "get_weather", "arguments": {"city": "Rome"}}' in kept and "sunny" in kept


def test_kept_and_deleted(engine, client):
    first = ask(client, instructions="Not kept.")
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    ask(client, input="And now?", previous_response_id=first.id)
    assert client.prompts[-1].count("user\n") == 2 and engine.text in client.prompts[-1]
    assert "Not kept." not in client.prompts[-1]
    client.responses.delete(first.id)
    for use in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.delete(first.id),
        lambda: ask(client, previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError):
            use()


def test_store_false_keeps_nothing(client):
    answer = ask(client, store=False)
    assert answer.model_extra["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_a_server_that_keeps_nothing(start):
    client = start(max_stored_responses=0)
    assert ask(client).model_extra["store"] is False
    with pytest.raises(openai.BadRequestError, match="keeps no responses"):
        ask(client, store=True)


def test_cancelling_is_for_the_background(client):
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(ask(client).id)


def test_keys_see_their_own_only(start):
    client = start(api_key=("one", "two"))
    assert ApiKey.create("one").client.client_id != ApiKey.create("two").client.client_id
    one, two = (client.with_options(api_key=key) for key in ("one", "two"))
    answer = ask(one)
    assert one.responses.retrieve(answer.id).id == answer.id
    with pytest.raises(openai.NotFoundError):
        two.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        ask(two, previous_response_id=answer.id)


def test_what_is_cut_is_incomplete(engine, client):
    answer = ask(client, max_output_tokens=3)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    assert list(ask(client, max_output_tokens=3, stream=True))[-1].type == "response.incomplete"
    engine.text = CALL
    cut = ask(client, tools=[WEATHER], max_output_tokens=len(CALL) - 20)
    assert cut.output[0].status == "incomplete"


def test_structure_and_forced_calls(engine, client):
    form = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}
    ask(client, text={"format": form})
    assert engine.params[-1].structured_outputs.json == '{"type":"integer"}'
    ask(client, tools=[NOW], tool_choice={"type": "function", "name": "now"})
    assert engine.params[-1].structured_outputs.grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"id": "x", "text": "y"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": [1]}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        (
            {"input": [{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}]},
            "input[0].tool_calls",
        ),
        ({"tools": [NOW, NOW]}, "tools[1].name"),
        ({"tools": [{"type": "custom"}, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "a/b"}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": 3}]}, "input[0].name"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"truncation": "all"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 9999}, "input"),
        ({"conversation": "c"}, "conversation"),
    ],
)
def test_what_is_refused_names_its_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/responses", body={"input": "Hi", **fields}, cast_to=object)
    assert caught.value.body["param"] == param


LEFT_OUT = {
    "include": ["reasoning.encrypted_content"],
    "truncation": "auto",
    "text": {"verbosity": "low"},
    "reasoning": {"summary": "auto"},
    "client_metadata": {"a": "b"},
    "context_management": [{"type": "compaction", "compact_threshold": 9}],
    "tools": [
        NOW,
        {"type": "web_search"},
        {"type": "custom", "name": "edit/file", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "local_shell"},
        {"type": "namespace", "name": "mcp", "tools": []},
    ],
}


def test_what_a_coding_agent_sends_is_served_and_what_does_nothing_is_named(start):
    """One tool or field that no local server runs refused an agent's whole session."""
    client = start()
    raw = client.responses.with_raw_response.create(model="", input="Hi", extra_body=LEFT_OUT)
    named = set(raw.headers["x-ignored-params"].split(", "))
    assert {f"tools[{index}]" for index in (1, 2, 3, 4)} <= named
    assert {"include", "truncation", "text.verbosity", "reasoning.summary"} <= named
    assert {"client_metadata", "context_management"} <= named and "tools[0]" not in named
    assert [tool.name for tool in raw.parse().tools] == ["now"]
    assert client.prompts[-1].count('"function"') == 2  # one tool is shown, in its own words
    with pytest.raises(openai.BadRequestError, match="strict-params"):
        ask(start(strict_params=True), extra_body=LEFT_OUT)


def test_the_history_of_other_tools_is_shown_and_what_is_not_text_is_named(client):
    """Calls of tools that are no functions refused the conversation."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    items = [
        {"role": "user", "content": "Edit"},
        {"type": "reasoning", "id": "r", "summary": [], "content": None, "encrypted_content": "g"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "edit", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "local_shell_call", "id": "l", "call_id": "c2", "status": "completed",
         "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c2", "output": "a.py"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "shell_call", "call_id": "c4", "action": {"commands": ["pwd"]}},
        {"type": "shell_call_output", "call_id": "c4", "output": [{"stdout": "/a", "stderr": ""}]},
        {"type": "function_call", "call_id": "c3", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3",
         "output": [{"type": "input_text", "text": "noon"}, image]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip
    raw = client.responses.with_raw_response.create(model="", input=items)
    named = raw.headers["x-ignored-params"].split(", ")
    assert named == ["input[1].encrypted_content", "input[6]", "input[10].output[1]"]
    (prompt,) = client.prompts
    for shown in (
        '{"name": "edit", "arguments": {"input": "*** Begin"}}',
        "done(c1)",
        '{"name": "local_shell", "arguments": {"action": {"type": "exec", "command": ["ls"]}}}',
        "a.py(c2)",
        '{"stdout": "/a", "stderr": ""}(c4)',
        "noon[image omitted: this model reads text only](c3)",
        "assistant\nNo.",
    ):
        assert shown in prompt


def test_items_that_are_named_by_their_ids_are_what_is_kept(engine, client):
    """Clients that trust the server to keep answers were refused from their second turn on."""
    engine.text = CALL
    first = ask(client, tools=[WEATHER])
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sun"}
    user, named = {"role": "user", "content": "Weather?"}, first.output[0].id
    prompts = []
    for item in (
        first.output[0].to_dict(), {"type": "item_reference", "id": named}, {"id": named},
    ):  # fmt: skip
        ask(client, input=[user, item, output], tools=[WEATHER])
        prompts.append(client.prompts[-1])
    assert prompts[0] == prompts[1] == prompts[2]
    reference = {"type": "item_reference", "id": named}
    with pytest.raises(openai.BadRequestError, match="once") as caught:
        ask(client, input=[user, reference, reference])
    assert caught.value.body["param"] == "input[2].id"
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="Send the item itself"):
        ask(client, input=[user, reference])


def test_items_named_by_their_ids_are_the_keys_own(start):
    client = start(api_key=("one", "two"))
    one, two = (client.with_options(api_key=key) for key in ("one", "two"))
    items = [{"type": "item_reference", "id": ask(one).output[0].id}]
    ask(one, input=items)
    with pytest.raises(openai.BadRequestError, match="kept here"):
        ask(two, input=items)


def test_values_of_a_history_that_are_null_or_objects_are_read(client):
    """Chats took them, while here they ended the conversation."""
    items = [
        {"role": "user", "content": "A"},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": {"a": 1}},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": None},
        {"type": "function_call_output", "call_id": "c1", "output": None},
        {"type": "function_call_output", "call_id": "c2", "output": "noon"},
        {"type": "apply_patch_call", "call_id": "c3", "operation": {"type": "delete_file"}},
        {"type": "apply_patch_call_output", "call_id": "c3", "status": "failed"},
    ]
    ask(client, input=items)
    for shown in ('{"name": "now", "arguments": {"a": 1}}', "noon(c2)", "failed(c3)"):
        assert shown in client.prompts[-1]


def test_reasoning_before_a_call_leaves_earlier_reasoning_of_the_answer(client):
    """Reasoning between a message and a call took the place of what came before the message."""
    first, second = (
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
        for text in ("One.", "Two.")
    )
    said = {"role": "assistant", "content": "I look."}
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    for answer in ([first, said, second, call], [first, second, said, call]):
        items = [{"role": "user", "content": "A"}, *answer]
        messages = ResponsesRequest(input=items).read_input().messages
        assert [message.reasoning for message in messages] == [None, "One.\nTwo."]


def test_reasoning_that_nothing_follows_is_an_answer(client):
    thought = [{"type": "reasoning_text", "text": "Hm."}]
    item = {"type": "reasoning", "id": "r", "summary": [], "content": thought}
    ask(client, input=[{"role": "user", "content": "A"}, item, {"role": "user", "content": "B"}])
    assert client.prompts[-1].count("assistant") == 2


def test_instructions_and_leading_developer_messages_are_one(client):
    """Templates that take one system message refused what coding agents always send."""
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
    ask(client, instructions="Be kind.", input=[developer, {"role": "user", "content": "Hi"}])
    assert client.prompts[-1].startswith("<|im_start|>system\nBe kind.\nBe brief.<|im_end|>")
    assert client.prompts[-1].count("system") == 1


def test_structure_on_a_real_engine(live):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    fields = {"model": "tiny", "temperature": 1, "max_output_tokens": 300}

    def create(schema, **more):
        form = {"type": "json_schema", "name": "n", "schema": schema}
        return ask(live.openai, text={"format": form}, **fields, **more)

    answer = create(schema, extra_body={"seed": 3})
    assert answer.status == "completed" and len(json.loads(answer.output_text)) == 2
    streamed = list(create(schema, stream=True, extra_body={"seed": 3}))
    assert without_ids(streamed[-1].response) == without_ids(answer) | {
        "usage": streamed[-1].response.usage.to_dict()  # by now the prompt is cached
    }
    with pytest.raises(openai.BadRequestError, match="cannot be enforced") as caught:
        create({"not": {}})
    assert caught.value.body["param"] == "text.format"
    live.wait_until_idle()


def test_the_store_is_bounded():
    made = StoredResponse.create(b"x" * 50, [Message(role="user", content="Hi")])
    store = ResponseStore(max_responses=3, max_bytes=10 * made.num_bytes)
    for name in "abcd":
        store.put("", name, made)
    assert len(store) == 3 and store.get("", "a") is None
    assert store.get("", "b").messages() == [Message(role="user", content="Hi")]
    store.put("", "e", made)  # b was used, so c goes
    assert store.get("", "c") is None and store.get("", "b") is not None
    assert store.num_bytes == 3 * made.num_bytes
    assert store.delete("", "b") and not store.delete("", "b") and not store.delete("x", "d")
    small = ResponseStore(max_responses=9, max_bytes=made.num_bytes)
    small.put("", "a", made)
    small.put("", "b", made)
    assert len(small) == 1 and small.num_bytes == made.num_bytes
    small.put("", "c", StoredResponse.create(b"x" * 5000, []))
    assert len(small) == small.num_bytes == 0


def test_a_client_that_keeps_many_answers_takes_no_other_s():
    """A thousand tiny answers, or one of 60 MB, had all clients' earlier turns answered by 404."""
    made = StoredResponse.create(b"x" * 50, [])
    large = StoredResponse.create(b"x" * 20 * 50, [])
    store = ResponseStore(max_responses=6, max_bytes=25 * made.num_bytes)
    store.put("b", "kept", made)
    store.put("c", "kept", made)
    for number in range(20):
        store.put("a", str(number), made)
    store.put("a", "large", large)
    store.put("a", "larger", large)
    assert store.get("b", "kept") is not None and store.get("c", "kept") is not None
    assert store.get("a", "larger") is not None and store.get("a", "large") is None
    assert len(store) == 3 and store.num_bytes == large.num_bytes + 2 * made.num_bytes
    store.put("a", "too large", StoredResponse.create(b"x" * 9999, []))
    assert len(store) == 2 and store.num_bytes == 2 * made.num_bytes
    assert store.delete("b", "kept") and store.delete("c", "kept") and store.num_bytes == 0


def test_input_items(client, engine):
    """All that was answered, whatever it was sent as; the newest first unless asked otherwise."""
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    first = ask(client, input=history, instructions="Not one of them.")
    second = ask(client, input="b", previous_response_id=first.id)
    listed = client.responses.input_items.list
    items = list(listed(second.id, order="asc"))
    kinds = ["message", "reasoning", "function_call", "function_call_output", "message", "message"]
    assert [item.type for item in items] == kinds
    assert (items[0].content[0].text, items[0].role) == ("a", "user")
    assert (items[2].name, items[3].output) == ("f", "1")
    assert (items[4].content[0].text, items[4].role) == (engine.text, "assistant")
    assert items[5].content[0].text == "b"
    assert len({item.id for item in items}) == 6
    assert [item.id for item in listed(second.id)] == [item.id for item in reversed(items)]
    assert [item.id for item in listed(second.id, limit=4)] == [item.id for item in items[::-1]]
    page = listed(second.id, limit=4)
    assert page.has_more and len(page.data) == 4
    for wrong in ({"limit": 0}, {"limit": "9" * 5000}, {"order": "up"}, {"after": "x"}):
        with pytest.raises(openai.BadRequestError) as caught:
            listed(second.id, **wrong)
        assert caught.value.body["param"] in wrong
    with pytest.raises(openai.NotFoundError):
        listed("resp_x")
