"""Anthropic's request as our chat request: turns, blocks, tools, settings, and what is refused."""

from __future__ import annotations

import json

import pytest

from quire.core.errors import RequestError
from quire.protocol.anthropic.anthropic import AnthropicPrompt, AnthropicRequest
from quire.protocol.decode import decode_body
from quire.protocol.tools import NamedTool

HELLO = {"role": "user", "content": "Hi"}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "2"}
TOOL = {"name": "f", "description": "F.", "input_schema": {"type": "object"}}


def decode(*turns, **fields):
    body = {"max_tokens": 5, "messages": [*turns], **fields}
    return decode_body(json.dumps(body).encode(), AnthropicRequest)


def chat(*turns, **fields):
    return decode(*turns, **fields)[0].chat_request()


def shown(*turns, **fields):
    """Return role, text, reasoning, and calls or the call that is answered, of each message."""
    return [
        (
            message.role,
            message.content,
            message.reasoning,
            [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
            if message.tool_calls
            else message.tool_call_id,
        )
        for message in chat(*turns, **fields).messages
    ]


def text(value, **fields):
    return {"type": "text", "text": value, **fields}


def user(*blocks):
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks):
    return {"role": "assistant", "content": [*blocks]}


def test_a_text_is_a_block():
    expected = [("system", "Be brief.\nBe kind.", None, None), ("user", "Hi", None, None)]
    system = [text("Be brief.", cache_control={"type": "ephemeral", "ttl": "1h"}), text("Be kind.")]
    assert shown(HELLO, system=system) == expected
    assert shown(user(text("Hi")), system="Be brief.\nBe kind.") == expected
    assert shown(HELLO, system=[]) == shown(HELLO, system="") == expected[1:]


def test_turns_of_one_role_are_one():
    turns = [HELLO, user(text("a"), text("b")), assistant(text("c")), assistant(text("d")), HELLO]
    assert shown(*turns) == [
        ("user", "Hi\na\nb", None, None),
        ("assistant", "cd", None, None),
        ("user", "Hi", None, None),
    ]


def test_thoughts_calls_and_results():
    turns = [
        HELLO,
        assistant(
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "y"},
            text("Well.", citations=None),
            CALL | {"caller": {"type": "direct"}},
            CALL | {"id": "t2", "input": {}},
        ),
        user(
            text("And?"), RESULT | {"is_error": True}, {"type": "tool_result", "tool_use_id": "t2"}
        ),
    ]
    assert shown(*turns) == [
        ("user", "Hi", None, None),
        ("assistant", "Well.", "Hm.", [("t1", "f", '{"x":1}'), ("t2", "f", "{}")]),
        ("tool", "2", None, "t1"),
        ("tool", "", None, "t2"),
        ("user", "And?", None, None),
    ]
    assert decode(*turns)[1] == []


def test_documents_and_search_results_are_text():
    plain = {"type": "text", "media_type": "text/plain", "data": "Long."}
    document = {
        "type": "document",
        "source": plain,
        "title": "T",
        "context": "C",
        "citations": None,
    }
    nested = {"type": "content", "content": [text("a"), text("b")]}
    found = {"type": "search_result", "source": "s", "title": "T", "content": [text("R")]}
    turn = user(document, {"type": "document", "source": nested}, found, text("Sum up."))
    assert shown(turn) == [("user", "T\nC\nLong.\na\nb\nT\ns\nR\nSum up.", None, None)]


def test_a_system_prompt_in_the_midst_stays_there():
    block = {"type": "mid_conv_system", "content": [text("Now in French.")]}
    expected = [(role, content) for role, content, *_ in shown(user(text("a"), block, text("b")))]
    assert expected == [("user", "a"), ("system", "Now in French."), ("user", "b")]
    turns = [{"role": "system", "content": "B"}, HELLO, {"role": "system", "content": "C"}]
    assert [one[:2] for one in shown(*turns, system="A")] == [
        ("system", "A\nB"), ("user", "Hi"), ("system", "C")
    ]  # fmt: skip


def test_system_prompts_that_follow_each_other_are_one():
    block = {"type": "mid_conv_system", "content": [text("x" * 900)]}
    turns = [user(block), {"role": "system", "content": "y"}] * 100
    body, _ = decode(*turns)
    (message,) = body.chat_request().messages
    assert len(message.content) == 100 * 903 - 1


def test_a_last_turn_of_the_assistant_is_gone_on_with():
    asked = chat(HELLO, assistant(text("The answer is (")))
    assert asked.continue_final_message and asked.messages[-1].content == "The answer is ("
    for empty in (assistant(), assistant(text("")), {"role": "assistant", "content": ""}):
        asked = chat(HELLO, empty)
        assert not asked.continue_final_message and len(asked.messages) == 1
    assert not chat(HELLO).continue_final_message


@pytest.mark.parametrize(
    "kind",
    [
        "web_search", "web_fetch", "code_execution", "bash_code_execution",
        "text_editor_code_execution", "tool_search", "mcp",
    ],
)  # fmt: skip
def test_what_the_tools_of_another_server_left_is_left_out_and_told(kind):
    """A conversation that had searched the web could not be gone on with here."""
    called = {"type": "mcp_tool_use", "id": "s", "name": "n", "server_name": "m", "input": {}}
    if kind != "mcp":
        called = {"type": "server_tool_use", "id": "s", "name": kind, "input": {"query": "q"}}
    given = {"type": f"{kind}_tool_result", "tool_use_id": "s", "content": [{"type": "x"}]}
    said = assistant(text("I look."), called, given, text(" Found.", citations=[{"type": "y"}]))
    body, unknown = decode(HELLO, said, HELLO)
    assert body.chat_request().messages[1].content == "I look. Found."
    assert unknown == []
    assert body.without_effect() == ["messages[1].content[1]", "messages[1].content[2]"]


def test_an_image_in_a_result_is_a_note_and_told():
    """Refused it would end the conversation: a client sends it again in every later turn."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
    pdf = {"type": "document", "source": {"type": "url", "url": "http://x"}}
    parts = [text("Page:"), image, pdf, {"type": "tool_reference", "tool_name": "f"}, {}]
    turns = (HELLO, assistant(CALL), user(RESULT | {"content": parts}))
    body, _ = decode(*turns)
    note = "[{} omitted: this model reads text only]"
    kinds = ("image", "document", "tool_reference", "part")
    expected = "\n".join(["Page:", *map(note.format, kinds)])
    assert body.chat_request().messages[-1].content == expected
    assert body.without_effect() == [f"messages[2].content[0].content[{i}]" for i in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("block", "where", "rule"),
    [
        ({"type": "image", "source": {"type": "url", "url": "u"}}, "type", "reads text only"),
        (
            {"type": "document", "source": {"type": "base64", "data": "A"}},
            "source",
            "must be text: .* got 'base64'",
        ),
        (
            {
                "type": "document",
                "source": {"type": "text", "data": "A"},
                "citations": {"enabled": True},
            },
            "citations",
            "must not be enabled",
        ),
        (CALL, "type", "turn of the user may hold; got 'tool_use'"),
        ({"type": "thinking", "thinking": "x"}, "type", "got 'thinking'"),
        ({"type": "server_tool_use", "id": "1"}, "type", "server_tool_use"),
        ({"type": "text"}, "text", "missing required field"),
        ({"type": "text", "text": 5}, "text", "got `int`"),
        ({"text": "no type"}, "type", "missing"),
        (RESULT | {"content": [{"type": "text", "text": 1}]}, "content[0].text", "must be text"),
        (RESULT | {"content": 5}, "content", "got `int`"),
    ],
)
def test_what_is_not_served_is_refused_by_its_path(block, where, rule):
    with pytest.raises(RequestError, match=rule) as caught:
        chat(HELLO, assistant(text("a")), user(text("b"), block))
    assert caught.value.param == f"messages[2].content[1].{where}", str(caught.value)


@pytest.mark.parametrize(
    ("last", "rule"),
    [
        (assistant(text("a"), CALL), "tool_use that has no tool_result"),
        (assistant({"type": "thinking", "thinking": "x"}), "must have text"),
        (assistant(RESULT), "turn of the assistant may hold"),
        ({"role": "system", "content": [CALL]}, "turn of the system may hold"),
        ({"role": "tool", "content": "a"}, "tool"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
    ],
)
def test_what_no_turn_may_be_is_refused(last, rule):
    with pytest.raises(RequestError, match=rule) as caught:
        chat(HELLO, last)
    assert caught.value.param.startswith("messages[1]")


def test_tools_and_choices():
    asked = chat(HELLO, tools=[TOOL | {"type": "custom", "strict": True}])
    (tool,) = asked.tools
    assert (tool.function.name, tool.function.description, tool.function.strict) == (
        "f",
        "F.",
        True,
    )
    assert tool.function.parameters == {"type": "object"}
    assert asked.tool_choice is None and asked.parallel_tool_calls
    for choice, expected in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert chat(HELLO, tools=[TOOL], tool_choice={"type": choice}).tool_choice == expected
    one = {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    asked = chat(HELLO, tools=[TOOL], tool_choice=one)
    assert isinstance(asked.tool_choice, NamedTool) and asked.tool_choice.function.name == "f"
    assert asked.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"container": "c1"}, "container"),
        ({"thread": {"type": "continue", "previous_message_id": "m"}}, "thread"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields, param):
    with pytest.raises(RequestError) as caught:
        chat(HELLO, **fields)
    assert caught.value.param.startswith(param), str(caught.value)


def test_settings():
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "schema": schema}
    asked = chat(
        HELLO, stop_sequences=["x"], temperature=0.5, top_p=0.9, top_k=3, seed=7, stream=True,
        output_config={"effort": "max", "format": form}, thinking={"type": "adaptive"},
    )  # fmt: skip
    assert (asked.max_completion_tokens, asked.stop, asked.temperature) == (5, ["x"], 0.5)
    assert (asked.top_p, asked.top_k, asked.seed, asked.stream) == (0.9, 3, 7, True)
    assert asked.reasoning_effort == "max" and asked.structured_outputs.json == schema
    assert asked.chat_template_kwargs["enable_thinking"] is True
    older = chat(HELLO, output_format=form)
    assert older.structured_outputs.json == schema
    for thinking in (None, {"type": "disabled"}, {"type": "between_tools"}):
        off = chat(HELLO, thinking=thinking)
        assert off.chat_template_kwargs == {"enable_thinking": False, "thinking": False}


def test_what_does_nothing_is_told():
    ephemeral = {"type": "ephemeral"}
    keep = {"type": "clear_thinking_20251015", "keep": "all"}
    edit = {"type": "clear_tool_uses_20250919"}
    body, ignored = decode(
        user(text("Hi", cache_control=ephemeral, colour="red")),
        assistant(CALL | {"why": 1}),
        user(RESULT | {"cache_control": ephemeral, "late": 1}),
        system=[text("x-anthropic-billing-header: cc=1"), text("Be brief.")],
        tools=[TOOL | {"cache_control": ephemeral, "defer_loading": True}],
        metadata={"user_id": "u"}, service_tier="auto", inference_geo="eu", cache_control=ephemeral,
        container=None, mcp_servers=[], thinking={"type": "enabled", "budget_tokens": 2048},
        context_management={"edits": [keep, edit]}, speed="fast",
    )  # fmt: skip
    assert set(ignored) == {
        "messages[].content[].colour", "messages[].content[].why", "messages[].content[].late",
        "tools[].defer_loading", "speed",
    }  # fmt: skip
    assert body.without_effect() == [
        "system[0]", "thinking.budget_tokens", "context_management.edits[1]"
    ]  # fmt: skip
    assert body.chat_request().messages[0].content == "Be brief."


def test_a_count_needs_no_limit_of_the_answer():
    body, ignored = decode_body(json.dumps({"messages": [HELLO]}).encode(), AnthropicPrompt)
    assert not ignored and len(body.chat_request().messages) == 1
    with pytest.raises(RequestError, match="max_tokens"):
        decode_body(json.dumps({"messages": [HELLO]}).encode(), AnthropicRequest)
