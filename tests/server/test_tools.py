"""Tool calls and reasoning in chat completions: on the wire, and forced on a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest

from quire.core.errors import ConfigError
from quire.server.generation.answer_parser import AnswerFormats
from quire.server.server_options import ServerOptions
from quire.text.templates.chat_template import ChatTemplate

TEMPLATE = """\
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}
{%- if message.tool_call_id is defined %}({{ message.tool_call_id }}){% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}
{#- </think> -#}
"""
HELLO = [{"role": "user", "content": "Weather?"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TWO = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'


@pytest.fixture
def with_tools(tokenizer, monkeypatch) -> None:
    """The scripted model has a template with tools and reasoning."""
    template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens)
    monkeypatch.setattr(tokenizer, "chat_template", template)


@pytest.fixture
def chat(engine, with_tools, serve) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the scripted model."""
    engine.max_model_len = 4096
    http = serve()
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, **fields):
    keywords = {"model": "", "messages": HELLO, "tools": [WEATHER, NOW]}
    return client.chat.completions.create(**{**keywords, **fields})


def streamed(client, **fields):
    """Return the joined message of a stream, and its finish reasons by chunk."""
    message = {"content": None, "reasoning": None, "tool_calls": []}
    reasons = []
    for chunk in ask(client, stream=True, **fields):
        for choice in chunk.choices:
            delta = choice.delta
            reasons.append(choice.finish_reason)
            for field, text in (
                ("content", delta.content),
                ("reasoning", (delta.model_extra or {}).get("reasoning")),
            ):
                if text is not None:
                    message[field] = (message[field] or "") + text
            for call in delta.tool_calls or []:
                if call.id is not None:
                    assert call.function.arguments == "" and call.type == "function"
                    assert call.index == len(message["tool_calls"])
                    message["tool_calls"].append([call.function.name, ""])
                else:
                    assert call.function.name is None and call.function.arguments
                    message["tool_calls"][call.index][1] += call.function.arguments
    return message, reasons


def calls_of(message):
    return [[call.function.name, call.function.arguments] for call in message.tool_calls or []]


def test_calls_whole_and_streamed(engine, chat):
    engine.text = TWO
    choice = ask(chat).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert calls_of(choice.message) == [["get_weather", '{"city": "Rome"}'], ["now", "{}"]]
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 2 and all(i.startswith("call_") for i in ids)
    message, reasons = streamed(chat)
    assert (message["content"], message["tool_calls"]) == ("Let me see.", calls_of(choice.message))
    assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}


def test_a_call_alone_has_no_content(engine, chat):
    engine.text = CALL
    assert ask(chat).choices[0].message.content is None
    assert streamed(chat)[0]["content"] == ""


def test_an_answer_without_a_call(engine, chat):
    engine.text = "No <tool_call> for you."
    choice = ask(chat).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", engine.text)
    assert choice.message.tool_calls is None
    message, reasons = streamed(chat)
    assert (message["content"], reasons[-1]) == (engine.text, "stop")


def test_a_broken_call_is_named(engine, chat):
    engine.text = '<tool_call>{"name": "now", "arguments": {oops}}</tool_call>'
    choice = ask(chat).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.model_extra["tool_call_errors"][0].startswith(
        "[tool_calls[0].function.arguments]"
    )
    chunks = list(ask(chat, stream=True))
    assert chunks[-1].choices[0].model_extra["tool_call_errors"]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_what_ends_early_is_no_call_to_make(engine, chat):
    engine.text = CALL
    assert ask(chat, max_tokens=len(CALL) - 20).choices[0].finish_reason == "length"


def test_none_leaves_the_text_alone(engine, chat):
    engine.text = CALL
    choice = ask(chat, tool_choice="none").choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", CALL)


def prompt_of(client, http, **fields):
    body = {"messages": HELLO, "tools": [NOW], **fields}
    tokens = http.post("/tokenize", json=body).json()["tokens"]
    return http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]


def test_tools_and_their_history_reach_the_template(engine, with_tools, serve):
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    prompt = prompt_of(None, serve(), messages=history)
    assert prompt.startswith('<tools>{"type": "function", "function": {"name": "now"')
    assert '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>' in prompt
    assert "tool\nnoon(c1)" in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": [1]}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"tool_choice": "required", "tools": [{"function": {
            "name": "f", "strict": True, "parameters": {"not": {}}}}]},
         "tools[0].function.parameters"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        *(({"tools": [NOW, {"function": {"name": "f", "parameters": {"type": kind}}}]},
           "tools[1].function.parameters")
          for kind in ("array", "string", "OBJECT", None, ["string", "null"])),
    ],
)  # fmt: skip
def test_what_is_refused(engine, with_tools, serve, fields, param):
    response = serve().post(
        "/v1/chat/completions", json={"messages": HELLO, "tools": [NOW], **fields}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"enable_auto_tool_choice": False}, "--no-enable-auto-tool-choice"),
        ({"tool_call_parser": "none"}, "--tool-call-parser"),
    ],
)
def test_auto_needs_a_parser(engine, with_tools, serve, options, text):
    body = {"messages": HELLO, "tools": [NOW]}
    client = serve(**options)
    response = client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")
    assert text in response.json()["error"]["message"]
    # A call that is forced is in a format that we know.
    engine.text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    forced = client.post("/v1/chat/completions", json={**body, "tool_choice": "required"}).json()
    assert forced["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now"
    assert engine.params[-1].structured_outputs.kind == "grammar"


HARMONY = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}'
)
TAGGED = "<tool_call>\n<function=get_weather>\n<parameter=city>\n7\n</parameter>\n</function>\n"


@pytest.mark.parametrize(
    ("options", "text", "content", "reasoning", "arguments"),
    [
        (
            {"tool_call_parser": "openai", "reasoning_parser": "openai_gptoss"},
            HARMONY, "I look.", "hm", '{"city": "Rome"}',
        ),
        # The schema says that a city is text.
        ({"tool_call_parser": "qwen3_xml"}, TAGGED + "</tool_call>", None, None, '{"city": "7"}'),
        (
            {"tool_call_parser": "pythonic", "reasoning_parser": "granite"},
            "Here's my thought process: hm Here's my response: [get_weather(city='Rome')]",
            None, "hm", '{"city": "Rome"}',
        ),
    ],
)  # fmt: skip
def test_other_formats(engine, with_tools, serve, options, text, content, reasoning, arguments):
    engine.text, engine.max_model_len = text, 4096
    http = serve(**options)
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client:
        message = ask(client).choices[0].message
        assert (message.content, message.model_extra.get("reasoning")) == (content, reasoning)
        assert calls_of(message) == [["get_weather", arguments]]
        made, reasons = streamed(client)
    assert made["tool_calls"] == calls_of(message) and reasons[-1] == "tool_calls"
    assert (made["content"] or None, made["reasoning"]) == (content, reasoning)


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("tool_call_parser", "hermes, llama3_json, pythonic, mistral, qwen3_coder"),
        ("reasoning_parser", "qwen3, deepseek_r1, glm45, granite, openai_gptoss"),
    ],
)
def test_unknown_formats_are_refused_with_those_there_are(option, names):
    with pytest.raises(ConfigError, match=f"one of {names}") as caught:
        AnswerFormats.resolve(ServerOptions(**{option: "nonsense"}), None)
    assert f"--{option.replace('_', '-')}" in str(caught.value)
    assert str(caught.value).endswith("got nonsense.")


def test_mistral_ids(engine, with_tools, serve):
    engine.text = '[TOOL_CALLS][{"name": "now", "arguments": {}}]'
    body = {"messages": HELLO, "tools": [NOW]}
    made = serve(tool_call_parser="mistral").post("/v1/chat/completions", json=body).json()
    assert len(made["choices"][0]["message"]["tool_calls"][0]["id"]) == 9


def test_reasoning_is_split(engine, chat):
    engine.text = f"<think>\nhm\n</think>\n\nSo.\n{CALL}"
    answer = ask(chat)
    message = answer.choices[0].message
    assert (message.model_extra["reasoning"], message.content) == ("hm", "So.")
    assert message.model_extra["reasoning_content"] == "hm"
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("<think>\nhm\n</think>")
    made, reasons = streamed(chat)
    assert made == {
        "content": "So.",
        "reasoning": "hm",
        "tool_calls": [["get_weather", '{"city": "Rome"}']],
    }
    assert reasons[-1] == "tool_calls"


def test_reasoning_may_be_left_out_and_opened_by_the_prompt(engine, chat):
    engine.text = "hm</think>So."
    extra = {"chat_template_kwargs": {"enable_thinking": True}}
    shown = ask(chat, extra_body=extra).choices[0].message
    assert (shown.content, shown.model_extra["reasoning"]) == ("So.", "hm")
    extra["include_reasoning"] = False
    message = ask(chat, extra_body=extra).choices[0].message
    assert (message.content, "reasoning" in message.model_extra) == ("So.", False)
    assert streamed(chat, extra_body=extra)[0]["reasoning"] is None


def test_an_answer_that_is_gone_on_with_has_reasoned_already(engine, with_tools, serve):
    """What followed was taken for reasoning, for such a model begins with it."""
    engine.text, engine.max_model_len = " 5.", 4096
    http = serve(reasoning_parser="deepseek_r1")
    for begun, content, reasoning in (
        ("The answer is", " 5.", None),
        ("<think>hm</think>The answer is", " 5.", None),
        ("<think>Four and one make", None, "5."),
    ):
        messages = [*HELLO, {"role": "assistant", "content": begun}]
        body = {"messages": messages, "continue_final_message": True}
        answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert (answer["content"] or None, answer.get("reasoning")) == (content, reasoning)


def test_structure_begins_behind_the_reasoning(engine, chat):
    form = {"type": "json_object"}
    ask(chat, response_format=form, tools=openai.NOT_GIVEN)
    first = engine.params[-1].structured_outputs
    assert (first.reasoning_start, first.reasoning_end) == ("<think>", "</think>")
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    ask(chat, response_format=form, extra_body=thinking)
    second = engine.params[-1].structured_outputs
    assert (second.reasoning_start, second.reasoning_end) == ("", "</think>")
    assert second.or_grammar and second.json_object


@pytest.fixture
def live_tools(live, monkeypatch):
    """The real engine with the template; its random weights call only what is forced."""
    tokenizer = live.service.engine.tokenizer
    template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    formats = AnswerFormats.resolve(live.service.options, tokenizer.chat_template)
    monkeypatch.setattr(live.service, "formats", formats)
    return live


@pytest.mark.parametrize("choice", ["required", {"function": {"name": "get_weather"}}])
def test_forced_on_a_real_engine(live_tools, monkeypatch, choice):
    # It would begin to reason at random, and never end.
    formats = replace(live_tools.service.formats, reasoning=None)
    monkeypatch.setattr(live_tools.service, "formats", formats)
    client = live_tools.openai
    if isinstance(choice, dict):
        choice = {"type": "function", **choice}
    fields = {"tool_choice": choice, "temperature": 1, "seed": 5, "parallel_tool_calls": False}
    whole = ask(client, max_tokens=200, **fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    ((name, arguments),) = calls_of(whole.message)
    if isinstance(choice, dict):
        assert name == "get_weather"
    if name == "get_weather":
        assert json.loads(arguments)["city"] in ("Rome", "Oslo")
    message, reasons = streamed(client, max_tokens=200, **fields)
    assert message["tool_calls"] == [[name, arguments]]
    assert reasons[-1] == "tool_calls"


def test_reasoning_before_structure_on_a_real_engine(live_tools):
    """The grammar holds the answer back until the reasoning ended, which the prompt opened."""
    answer = ask(
        live_tools.openai,
        tools=openai.NOT_GIVEN,
        max_tokens=60,
        temperature=0,
        response_format={"type": "json_object"},
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )
    choice = answer.choices[0]
    if choice.finish_reason == "stop":
        json.loads(choice.message.content)
    else:
        assert choice.message.content is None
        assert answer.usage.completion_tokens_details.reasoning_tokens == 60
