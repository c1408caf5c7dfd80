"""``reasoning_effort`` reaches templates that know it; where nothing does, the answer says so."""

from __future__ import annotations

import json

import pytest

from quire.protocol.decode import decode_body
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.text.templates.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "Hi"}]
EFFORT = "{{ messages[0].content }}{{ reasoning_effort | default('medium') }}"
SWITCH = "{{ messages[0].content }}{{ 'T' if enable_thinking | default(true) }}"
NOTHING = "{{ messages[0].content }}"


@pytest.fixture
def prompt_of(serve, engine, tokenizer, monkeypatch):
    """Ask over HTTP with a template; returns the prompt's text and the answer's headers."""
    seen = []
    generate = engine.generate

    def recording(request):
        seen.append(tokenizer.decode(request.prompt_token_ids))
        return generate(request)

    engine.generate = recording
    clients = {}

    def ask(template, path, body, strict=False):
        made = ChatTemplate({"default": template}, tokenizer.special_tokens)
        monkeypatch.setattr(tokenizer, "chat_template", made)
        if strict not in clients:
            clients[strict] = serve(strict_params=strict, reasoning_parser="qwen3")
        answer = clients[strict].post(path, json=body)
        if answer.status_code != 200:
            return answer.json(), answer.status_code
        return seen[-1], answer.headers.get("x-ignored-params")

    return ask


@pytest.mark.parametrize(
    ("template", "effort", "prompt", "ignored"),
    [
        (EFFORT, "high", "Hihigh", False),
        (EFFORT, "none", "Hinone", False),
        (EFFORT, None, "Himedium", False),
        (SWITCH, "none", "Hi", False),
        (SWITCH, "low", "HiT", True),
        (NOTHING, "low", "Hi", True),
    ],
)
def test_by_template(prompt_of, template, effort, prompt, ignored):
    chat = {"messages": HELLO, "reasoning_effort": effort}
    for path, body, name in (
        ("/v1/chat/completions", chat, "reasoning_effort"),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": effort}}, "reasoning.effort"),
    ):
        expected = name if ignored else None
        assert prompt_of(template, path, body) == (prompt, expected)
    if effort in ("low", "high"):
        body = {"messages": HELLO, "think": effort, "stream": False}
        assert prompt_of(template, "/api/chat", body) == (prompt, "think" if ignored else None)


@pytest.mark.parametrize(
    ("template", "fields", "prompt", "ignored"),
    [
        (SWITCH, {"enable_thinking": False}, "Hi", None),
        (SWITCH, {"enable_thinking": True}, "HiT", None),
        (SWITCH, {"thinking": {"type": "disabled"}}, "Hi", None),
        (SWITCH, {"thinking": False, "enable_thinking": False}, "Hi", None),
        (SWITCH, {"thinking": {"type": "enabled", "budget_tokens": 64}}, "HiT",
         "thinking.budget_tokens"),
        (SWITCH, {"reasoning": {"enabled": False}}, "Hi", None),
        (SWITCH, {"reasoning": {"effort": "none"}, "enable_thinking": False}, "Hi", None),
        (SWITCH, {"reasoning": {"max_tokens": 64}}, "HiT", "reasoning.max_tokens"),
        (EFFORT, {"reasoning": {"effort": "high", "enabled": True}}, "Hihigh", None),
        (EFFORT, {"reasoning": {"effort": "low"}, "reasoning_effort": "low"}, "Hilow", None),
        (EFFORT, {"enable_thinking": False}, "Hinone", None),
        (EFFORT, {"enable_thinking": True}, "Himedium", None),
        (NOTHING, {"enable_thinking": False}, "Hi", "enable_thinking"),
        (NOTHING, {"thinking": {"type": "disabled"}}, "Hi", "thinking"),
    ],
)  # fmt: skip
def test_other_servers_fields_on_thinking_were_only_named(
    prompt_of, template, fields, prompt, ignored
):
    """An answer was thought about although the request turned that off."""
    body = {"messages": HELLO, **fields}
    assert prompt_of(template, "/v1/chat/completions", body) == (prompt, ignored)


def test_ollama_s_think_did_not_reach_templates_of_deepseek(prompt_of):
    """Only ``enable_thinking`` was set, and their variable is ``thinking``."""
    template = SWITCH.replace("enable_thinking", "thinking")
    for think, prompt in ((True, "HiT"), (False, "Hi"), (None, "HiT")):
        body = {"messages": HELLO, "think": think, "stream": False}
        assert prompt_of(template, "/api/chat", body) == (prompt, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": True, "reasoning_effort": "none"}, "enable_thinking"),
        ({"enable_thinking": False, "reasoning_effort": "high"}, "enable_thinking"),
        ({"enable_thinking": False, "thinking": {"type": "enabled"}}, "thinking"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort"),
        ({"reasoning": {"effort": "low", "enabled": False}}, "reasoning.enabled"),
        ({"reasoning": {"exclude": True}, "include_reasoning": True}, "reasoning.exclude"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "enable_thinking",
        ),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ],
)
def test_fields_on_thinking_that_contradict_each_other_are_refused(client, fields, param):
    answer = client.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_reasoning_that_is_excluded_is_not_shown():
    """It was sent: only ``include_reasoning`` was read."""
    for fields, shown in (
        ({}, True),
        ({"reasoning": {"exclude": False}}, True),
        ({"reasoning": {"exclude": True}}, False),
        ({"include_reasoning": False}, False),
    ):
        body = json.dumps({"messages": HELLO, **fields}).encode()
        assert decode_body(body, ChatCompletionRequest)[0].shows_reasoning is shown


def test_the_template_s_own_variables_win(prompt_of):
    kwargs = {"reasoning_effort": "low"}
    body = {"messages": HELLO, "reasoning_effort": "high", "chat_template_kwargs": kwargs}
    assert prompt_of(EFFORT, "/v1/chat/completions", body) == ("Hilow", None)


def test_strict_servers_refuse_what_does_nothing(prompt_of):
    body = {"messages": HELLO, "reasoning_effort": "low"}
    error, status = prompt_of(NOTHING, "/v1/chat/completions", body, strict=True)
    assert (status, error["error"]["param"]) == (400, "reasoning_effort")
    assert prompt_of(EFFORT, "/v1/chat/completions", body, strict=True) == ("Hilow", None)


def test_responses_say_what_was_asked_and_that_there_are_no_summaries(prompt_of, serve):
    reasoning = {"effort": "high", "summary": "auto"}
    body = {"input": "Hi", "reasoning": reasoning}
    assert prompt_of(EFFORT, "/v1/responses", body) == ("Hihigh", "reasoning.summary")
    answer = serve().post("/v1/responses", json=body).json()
    assert answer["reasoning"] == {"effort": "high", "summary": None}


def test_unknown_efforts_and_texts_without_a_template_are_refused(client):
    for path, body in (
        ("/v1/chat/completions", {"messages": HELLO, "reasoning_effort": "much"}),
        ("/v1/completions", {"prompt": "Hi", "reasoning_effort": "low"}),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_effort")
