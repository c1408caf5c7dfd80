"""Bodies that are wrong: each gives one clear error that names the place."""

from __future__ import annotations

import json

import msgspec
import pytest

from quire.core.errors import RequestError
from quire.protocol.anthropic.anthropic import AnthropicRequest
from quire.protocol.decode import decode_body
from quire.protocol.llama_server import LlamaRequest
from quire.protocol.ollama.ollama import OllamaChatRequest
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.tgi import TgiRequest

TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HELLO = [{"role": "user", "content": "Hi"}]


def refuse(kind, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RequestError) as caught:
        request, _ = decode_body(raw, kind)
        request.check()
        if kind is CompletionRequest:
            request.prompts()
        else:
            [message.for_template(i) for i, message in enumerate(request.messages)]
    return caught.value


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        (b"", None, "valid UTF-8 JSON"),
        (b"{", None, "valid UTF-8 JSON"),
        (b"nonsense", None, "valid UTF-8 JSON"),
        (b'{"messages": []}x', None, "trailing characters"),
        (b"[]", None, "got `array`"),
        (b"null", None, "got `null`"),
        (b'{"user": "\xff"}', None, "valid UTF-8 JSON"),
        (b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', None, "UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None, "valid UTF-8 JSON"),
        (b'{"temperature": NaN, "messages": []}', None, "valid UTF-8 JSON"),
        (b'{"x": ' + b"[" * 100_000, None, "nested too deeply"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "nested too deeply"),
        (b'{"tools": ' + b'{"a":' * 100_000, None, "nested too deeply"),
        ({}, "messages", "missing required field"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": "Hi"}, "messages", "Expected `array`, got `str`"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role", "missing required field"),
        ({"messages": [{"role": 1}]}, "messages[0].role", "got `int`"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role", "Invalid enum value 'robot'"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content", "int"),
        (
            {"messages": [{"role": "function", "content": "5"}]},
            "messages[0].role",
            "Use tools",
        ),
        (
            {"messages": [{"role": "user", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
            "role assistant",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function",
            "missing required field",
        ),
        ({"messages": HELLO, "tools": [{}]}, "tools[0].function", "missing required field"),
        (
            {"messages": HELLO, "tools": [{"function": {"name": "a b"}}]},
            "tools[0].function.name",
            "matching regex",
        ),
        ({"messages": HELLO, "tools": [TOOL, TOOL]}, "tools[1].function.name", "'f' twice"),
        ({"messages": HELLO, "tools": [TOOL] * 1025}, "tools", "at most 1024"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"messages": HELLO, "tools": [TOOL], "tool_choice": "any"}, "tool_choice", "Invalid enum"),
        (
            {"messages": HELLO, "tools": [TOOL], "tool_choice": {"function": {"name": "g"}}},
            "tool_choice.function.name",
            "one of tools",
        ),
        ({"messages": HELLO, "temperature": "hot"}, "temperature", "got `str`"),
        ({"messages": HELLO, "temperature": True}, "temperature", "got `bool`"),
        (b'{"messages": [], "temperature": 1e999}', "temperature", "out of range"),
        ({"messages": HELLO, "n": 1.5}, "n", "got `float`"),
        ({"messages": HELLO, "n": 10**30}, "n", "2147483647"),
        ({"messages": HELLO, "seed": 2**63}, "seed", "9223372036854775807"),
        ({"messages": HELLO, "stop": [1]}, "stop[0]", "Expected `str`"),
        ({"messages": HELLO, "logit_bias": {"a": 1}}, "logit_bias", "Expected `int`"),
        ({"messages": HELLO, "logit_bias": {"5": 101}}, "logit_bias", "[-100, 100]"),
        ({"messages": HELLO, "logit_bias": [5]}, "logit_bias", "got `array`"),
        ({"messages": HELLO, "top_logprobs": 3}, "top_logprobs", "logprobs: true"),
        ({"messages": HELLO, "stream_options": {}}, "stream_options", "stream: true"),
        (
            {"messages": HELLO, "stream": True, "prompt_logprobs": 1},
            "prompt_logprobs",
            "not available when stream",
        ),
        (
            {"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 6},
            "max_completion_tokens",
            "must agree",
        ),
        (
            {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "excludes",
        ),
        ({"messages": HELLO, "cache_salt": ""}, "cache_salt", "length >= 1"),
        ({"messages": HELLO, "request_id": "a b"}, "request_id", "matching regex"),
        ({"messages": HELLO, "request_id": "a\n"}, "request_id", "matching regex"),
        ({"messages": HELLO, "rid": "a\n"}, "rid", "matching regex"),
        (
            {"messages": HELLO, "tools": [{"function": {"name": "f\n"}}]},
            "tools[0].function.name",
            "matching regex",
        ),
    ],
)
def test_chat_bodies(body, param, text):
    error = refuse(ChatCompletionRequest, body)
    assert error.param == param
    assert text in str(error)


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({}, "prompt", "missing required field"),
        ({"prompt": 5}, "prompt", "got `int`"),
        ({"prompt": []}, "prompt", "1 to 1024 prompts; got 0"),
        ({"prompt": ["a"] * 1025}, "prompt", "got 1025"),
        ({"prompt": ["a", 5]}, "prompt", "got int, str"),
        ({"prompt": [[1], 5]}, "prompt", "got int, list"),
        ({"prompt": [1, True]}, "prompt[1]", "got `bool`"),
        ({"prompt": [[1, -1]]}, "prompt[0][1]", ">= 0"),
        ({"prompt": [[1, "a"]]}, "prompt[0][1]", "got `str`"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "0 only with echo"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "got `bool`"),
    ],
)
def test_completion_bodies(body, param, text):
    error = refuse(CompletionRequest, body)
    assert error.param == param
    assert text in str(error)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("", [""]),
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[]], [[]]),
    ],
)
def test_the_four_kinds_of_prompts(prompt, prompts):
    request, _ = decode_body(json.dumps({"prompt": prompt}).encode(), CompletionRequest)
    assert request.prompts() == prompts


def test_null_means_the_default():
    names = [n for n in ChatCompletionRequest.__struct_fields__ if n != "messages"]
    body = {"messages": HELLO, **dict.fromkeys(names)}
    request, ignored = decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    request.check()
    assert ignored == []
    params = request.sampling_params({"temperature": 0.7}, None, None)
    assert (params.temperature, params.n, params.max_tokens) == (0.7, 1, None)


def test_the_request_wins_over_the_model_s_defaults():
    body = {"messages": HELLO, "temperature": 0, "top_p": 0.5, "stop": "x", "max_tokens": 7}
    request, _ = decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    defaults = {"temperature": 0.7, "top_k": 20, "max_tokens": 99}
    params = request.sampling_params(defaults, request.output_limit, 2)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 0.5, 20)
    assert (params.stop, params.max_tokens, params.logprobs) == (("x",), 7, 2)


def test_messages_reach_the_template_as_it_knows_them():
    body = {
        "messages": [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "Ann"},
            {"role": "assistant", "content": "Yes?", "reasoning_content": "Hm.", "refusal": None},
        ]
    }
    request, _ = decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    assert [message.for_template(i) for i, message in enumerate(request.messages)] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "Ann"},
        {"role": "assistant", "content": "Yes?", "reasoning": "Hm.", "reasoning_content": "Hm."},
    ]


def test_reasoning_before_a_call_has_the_name_that_gpt_oss_reads():
    """Its template showed the call alone, and the model had lost what it was about.

    The template refuses reasoning so named next to content: there it stays with the other names.
    """
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for content, calls, is_named in ((None, [call], True), ("So.", [call], False), ("", [], False)):
        message = {"role": "assistant", "content": content, "reasoning": "Hm.", "tool_calls": calls}
        body = json.dumps({"messages": [message]}).encode()
        request, _ = decode_body(body, ChatCompletionRequest)
        shown = request.messages[0].for_template(0)
        assert shown["reasoning"] == shown["reasoning_content"] == "Hm."
        assert ("thinking" in shown) is is_named


@pytest.mark.parametrize(
    "rest", [b'"a":"\xff"', b'"a":' + b"1" * 5000, b'"a":' + b"[" * 5000, b'"a":"x']
)
def test_what_stands_next_to_a_number_out_of_range_is_no_crash(rest):
    """Looking for the number's place once decoded the body again, whose errors were not caught."""
    with pytest.raises(RequestError):
        decode_body(b'{"messages":[],"temperature":1e999,' + rest + b"}", ChatCompletionRequest)


def test_a_number_out_of_range_is_named_by_its_path():
    body = b'{"messages":[],"logit_bias":{"5":1e999}}'
    with pytest.raises(RequestError) as caught:
        decode_body(body, ChatCompletionRequest)
    assert (caught.value.param or "").startswith("logit_bias")


def test_unknown_fields_are_not_decoded(monkeypatch):
    """Whatever they hold: millions of small objects held up all streams for seconds."""
    decoded = []
    decode = msgspec.json.decode

    def recording(data, **kwargs):
        decoded.append(bytes(data))
        return decode(data, **kwargs)

    monkeypatch.setattr(msgspec.json, "decode", recording)
    body = b'{"messages":[{"role":"user","content":"hi"}],"junk":[[],[]]}'
    _, ignored = decode_body(body, ChatCompletionRequest)
    assert ignored == ["junk"]
    assert [data for data in decoded if b"[[],[]]" in data] == [body]


def test_an_error_tells_the_beginning_of_a_long_value():
    """A role of 20 MB was sent back whole."""
    body = {"messages": [{"role": "r" * 100_000, "content": "Hi"}]}
    with pytest.raises(RequestError, match="Invalid enum value 'rrr") as refused:
        decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    assert len(str(refused.value)) < 1000 and refused.value.param == "messages[0].role"


@pytest.mark.parametrize(
    ("kind", "body", "names"),
    [
        (ChatCompletionRequest, {"messages": HELLO, "max_tokens": 16.0, "seed": -3.0}, ["seed"]),
        (OllamaChatRequest, {"options": {"num_predict": 40.0, "seed": 1e2}}, ["options", "seed"]),
        (TgiRequest, {"inputs": "x", "parameters": {"top_k": 4.0}}, ["parameters", "top_k"]),
        (LlamaRequest, {"prompt": "x", "n_predict": 8.0}, ["n_predict"]),
    ],
)
def test_whole_numbers_written_as_floats_were_refused(kind, body, names):
    """Lua, PHP and others without whole numbers write 16.0, which pydantic and Go read as 16."""
    value, _ = decode_body(json.dumps(body).encode(), kind)
    for name in names:
        value = getattr(value, name)
    assert type(value) is int


@pytest.mark.parametrize("value", [16.5, 1e300, -1e18])
def test_other_floats_are_no_whole_numbers(value):
    error = refuse(ChatCompletionRequest, {"messages": HELLO, "max_tokens": value})
    assert error.param == "max_tokens" and "got `float`" in str(error)


def test_llama_server_s_stop_may_be_one_text():
    """It was a 400, unlike on all other routes."""
    body = {"prompt": "x", "stop": "a"}
    made, _ = decode_body(json.dumps(body).encode(), LlamaRequest)
    assert made.completion_request(lambda text: []).stop == "a"


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (ChatCompletionRequest, {"messages": HELLO, "tool_choice": "any"},
         "'any'. Send one of none, auto, required."),
        (ChatCompletionRequest, {"messages": HELLO, "tool_choice": {"type": "any"}},
         "'any'. Send one of function, allowed_tools."),
        (ChatCompletionRequest, {"messages": [{"role": "human", "content": "Hi"}]},
         "Send one of system, developer, user, assistant, tool, function."),
        (ChatCompletionRequest, {"messages": HELLO, "reasoning_effort": "hard"},
         "Send one of none, minimal, low, medium, high, xhigh, max."),
        (ChatCompletionRequest, {"messages": HELLO, "response_format": {"type": "xml"}},
         "Send one of text, json_object, json_schema, json, regex."),
        (OllamaChatRequest, {"messages": HELLO, "format": "xml"}, "'xml'. Send json."),
        (AnthropicRequest, {"max_tokens": 1, "messages": [
            {"role": "user", "content": [{"type": "audio"}]}]}, "Send one of text, image, "),
    ],
)  # fmt: skip
def test_a_wrong_name_is_told_with_the_right_ones(kind, body, text):
    """A client learnt that a value is wrong, and not which one would be right."""
    with pytest.raises(RequestError) as refused:
        decode_body(json.dumps(body).encode(), kind)
    assert text in str(refused.value)
