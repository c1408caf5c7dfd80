"""``tool_choice`` of the type ``allowed_tools``: the prompt shows all tools, some may be called."""

from __future__ import annotations

import pytest

from tests.server.test_tools import CALL, HELLO, NOW, WEATHER, with_tools

__all__ = ["with_tools"]
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
BOTH = [WEATHER, NOW]


def body(route, mode, names, tools=BOTH):
    """Return a request of a route in its form."""
    if route == CHAT:
        chosen = [{"type": "function", "function": {"name": name}} for name in names]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": chosen}}
        return {"messages": HELLO, "tools": tools, "tool_choice": choice}
    chosen = [{"type": "function", "name": name} for name in names]
    choice = {"type": "allowed_tools", "mode": mode, "tools": [*chosen, {"type": "web_search"}]}
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    return {"input": HELLO, "tools": flat, "tool_choice": choice}


@pytest.mark.parametrize("route", [CHAT, RESPONSES])
def test_tools_that_may_be_called_were_refused(engine, with_tools, serve, route):
    """OpenAI takes them; the choice was a 400."""
    engine.max_model_len, engine.text = 4096, CALL
    http = serve()
    assert http.post(route, json=body(route, "auto", ["get_weather", "now"])).status_code == 200
    assert engine.params[-1].structured_outputs is None
    for mode in ("auto", "required"):
        asked = body(route, mode, ["get_weather"])
        answer = http.post(route, json=asked).json()
        if route == CHAT:
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            assert call["function"]["name"] == "get_weather"
        else:
            assert answer["output"][-1]["name"] == "get_weather"
            assert answer["tool_choice"] == asked["tool_choice"]
        prompt = engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)
        grammar = engine.params[-1].structured_outputs.grammar
        assert "now" in prompt and "get_weather" in grammar and "now" not in grammar


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ((CHAT, "auto", ["now", "x"]), "tool_choice.allowed_tools.tools[1].function.name"),
        ((CHAT, "required", []), "tool_choice.allowed_tools.tools"),
        ((CHAT, "any", ["now"]), "tool_choice.allowed_tools.mode"),
        ((CHAT, "auto", ["now"], []), "tool_choice"),
        ((RESPONSES, "auto", ["x"]), "tool_choice.tools[0].name"),
        ((RESPONSES, "required", []), "tool_choice.tools"),
        ((RESPONSES, None, ["now"]), "tool_choice.mode"),
    ],
)
def test_choices_that_allow_nothing_known(with_tools, client, asked, param):
    answer = client.post(asked[0], json=body(*asked))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("route", "choice", "param"),
    [
        (CHAT, {"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (CHAT, {}, "tool_choice.function"),
        (RESPONSES, {"type": "function"}, "tool_choice.name"),
        (RESPONSES, {"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
    ],
)
def test_choices_that_lack_a_field(with_tools, client, route, choice, param):
    answer = client.post(route, json=body(route, "auto", ["now"]) | {"tool_choice": choice})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_number_of_hosted_calls_was_refused(client):
    """It bounds calls of tools that only OpenAI runs."""
    answer = client.post(RESPONSES, json={"input": "Hi", "max_tool_calls": 3})
    assert answer.status_code == 200 and "X-Ignored-Params" not in answer.headers
