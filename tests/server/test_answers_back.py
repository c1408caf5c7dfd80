"""Every answer of every route is taken back as history, whole or as a client joins its stream.

An agent sends back what it got. A message that the server refuses ends its session: each later
turn holds that message, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.server.test_tools import CALL, NOW, WEATHER, with_tools

__all__ = ["with_tools"]
USER = {"role": "user", "content": "Weather?"}
#: What the model writes, and what of it the next prompt shows.
KINDS = {
    "text": ("It is sunny.", ["It is sunny."]),
    "nothing": ("", []),
    "a space": (" ", []),
    "reasoning alone": ("<think>Let me see", []),
    "reasoning that ends": ("<think>Hm.</think>", []),
    "reasoning and text": ("<think>Hm.</think>It is sunny.", ["It is sunny."]),
    "a call": (CALL, ["get_weather", "Rome"]),
    "text and two calls": (f"I look.\n{CALL}\n{CALL}", ["I look.", "get_weather", "Rome"]),
    "reasoning and a call": (f"<think>Hm.</think>{CALL}", ["get_weather", "Rome"]),
    "no arguments": ('<tool_call>{"name": "now", "arguments": {}}</tool_call>', ["now"]),
    "a broken call": ('<tool_call>{"name": "now", "arguments": {oops}}</tool_call>', []),
    "a call that is no object": ('<tool_call>{"name": "now", "arguments": [1]}</tool_call>', []),
    "half a character": (
        '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d"}}</tool_call>', [],
    ),
}  # fmt: skip
CUTS = (1, 20, len(CALL) - 40, len(CALL) - 24, len(CALL) - 18)
FUNCTIONS = [WEATHER["function"], NOW["function"]]


class Route:
    """How a client of one route asks, joins a stream, and sends back what it got."""

    path: str
    limit = "max_tokens"
    tools: list[dict[str, Any]]

    def first(self) -> dict[str, Any]:
        return {"messages": [USER], "tools": self.tools}

    def whole(self, answer: dict[str, Any]) -> Any:
        raise NotImplementedError

    def joined(self, events: Iterator[dict[str, Any]]) -> Any:
        raise NotImplementedError

    def back(self, given: Any) -> dict[str, Any]:
        raise NotImplementedError


def _grown(calls: dict[int, dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        call = calls.setdefault(delta["index"], {"function": {"arguments": ""}})
        function = call["function"]
        call |= {name: delta[name] for name in ("id", "type") if name in delta}
        function |= {"name": delta["function"]["name"]} if "name" in delta["function"] else {}
        function["arguments"] += delta["function"].get("arguments", "")


class Chat(Route):
    path = "/v1/chat/completions"
    tools = [WEATHER, NOW]

    def whole(self, answer):
        return answer["choices"][0]["message"]

    def joined(self, events):
        message: dict[str, Any] = {"role": "assistant", "content": None}
        calls: dict[int, dict[str, Any]] = {}
        for delta in (choice["delta"] for event in events for choice in event["choices"]):
            for name in ("content", "reasoning", "reasoning_content"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            _grown(calls, delta.get("tool_calls", []))
        return message | ({"tool_calls": list(calls.values())} if calls else {})

    def back(self, given):
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
            for call in given.get("tool_calls", ())
        ]
        return self.first() | {"messages": [USER, given, *results, USER]}


class Responses(Route):
    path = "/v1/responses"
    limit = "max_output_tokens"
    tools = [{"type": "function", **function} for function in FUNCTIONS]

    def first(self):
        return {"input": [USER], "tools": self.tools}

    def whole(self, answer):
        return answer

    def joined(self, events):
        *_, last = events
        return last["response"]

    def back(self, given):
        items = given["output"]
        return self.first() | {"input": [USER, *items, *self.results(items), USER]}

    def results(self, items):
        ids = [item["call_id"] for item in items if "call_id" in item]
        return [{"type": "function_call_output", "call_id": one, "output": "sunny"} for one in ids]


class ResponsesKept(Responses):
    """The server has the history."""

    def back(self, given):
        done = [item for item in given["output"] if item["status"] == "completed"]
        return {"previous_response_id": given["id"], "input": [*self.results(done), USER]}


class Messages(Route):
    path = "/v1/messages"
    tools = [
        {"name": function["name"], "input_schema": function.get("parameters", {"type": "object"})}
        for function in FUNCTIONS
    ]

    def first(self):
        return super().first() | {"max_tokens": 1000}

    def whole(self, answer):
        return answer["content"]

    def joined(self, events):
        blocks: dict[int, dict[str, Any]] = {}
        inputs: defaultdict[int, str] = defaultdict(str)
        for event in events:
            if event["type"] == "content_block_start":
                blocks[event["index"]] = event["content_block"]
            elif event["type"] == "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                inputs[event["index"]] += delta.get("partial_json", "")
                for name in ("text", "thinking", "signature"):
                    block |= {name: block[name] + delta[name]} if name in delta else {}
        for index, text in inputs.items():
            if blocks[index]["type"] == "tool_use":
                blocks[index]["input"] = _read(text)
        return list(blocks.values())

    def back(self, given):
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"}
            for block in given
            if block["type"] == "tool_use"
        ]
        user = [*results, {"type": "text", "text": "Weather?"}]
        answer = {"role": "assistant", "content": given}
        return self.first() | {"messages": [USER, answer, {"role": "user", "content": user}]}


def _read(text: str) -> Any:
    """Return arguments as clients in JavaScript read them, or as nothing."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    written = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(written.decode("utf-16", "replace"))


class Ollama(Route):
    path = "/api/chat"
    tools = [WEATHER, NOW]

    def whole(self, answer):
        return answer["message"]

    def joined(self, events):
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for event in events:
            for name in ("content", "thinking"):
                if event["message"].get(name):
                    message[name] = message.get(name, "") + event["message"][name]
            message |= {n: event["message"][n] for n in ("tool_calls",) if n in event["message"]}
        return message

    def back(self, given):
        results = [
            {"role": "tool", "tool_name": call["function"]["name"], "content": "sunny"}
            for call in given.get("tool_calls", ())
        ]
        return self.first() | {"messages": [USER, given, *results, USER]}


ROUTES = {kind.__name__: kind() for kind in (Chat, Responses, ResponsesKept, Messages, Ollama)}


def _events(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in answer.text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


@pytest.mark.parametrize("name", ROUTES)
def test_each_answer_is_taken_back(name, engine, with_tools, serve):
    """Answers without content, and calls that ``max_tokens`` had cut, were refused later."""
    engine.max_model_len = 4096
    http, route = serve(), ROUTES[name]
    asked = [(text, None, shown) for text, shown in KINDS.values()]
    asked += [(f"<think>Hm.</think>{CALL}", cut + 18, []) for cut in CUTS]
    asked += [(CALL, cut, []) for cut in CUTS]
    for text, limit, shown in asked:
        engine.text = text
        for is_streamed in (False, True):
            body = route.first() | {"stream": is_streamed}
            if limit is not None:
                in_options = {"options": {"num_predict": limit}}
                body |= in_options if name == "Ollama" else {route.limit: limit}
            answer = http.post(route.path, json=body)
            assert answer.status_code == 200, (text, limit, answer.text)
            assert engine.requests[-1].is_whole is not is_streamed
            given = route.joined(_events(answer)) if is_streamed else route.whole(answer.json())
            back = http.post(route.path, json=route.back(given) | {"stream": False})
            assert back.status_code == 200, (text, limit, is_streamed, given, back.text)
            prompt = engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)
            assert all(part in prompt for part in shown), (text, given, prompt)
            assert prompt.count("Weather?") == 2


#: Of other servers, or as clients keep them.
CHAT = [
    {"content": None}, {}, {"content": ""}, {"content": []}, {"content": None, "tool_calls": []},
    {"content": None, "reasoning": "hm"}, {"content": None, "reasoning_content": "hm"},
    {"content": None, "refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]},
    {"tool_calls": [{"id": "c", "function": {"name": "now"}}]},
]  # fmt: skip
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": ""}
OTHERS = {
    "Chat": CHAT,
    "Messages": [[], "", [THOUGHT], [{"type": "text", "text": ""}]],
    "Ollama": [{"content": ""}, {}, {"content": "", "thinking": "hm"}, {"content": None}],
    "Responses": [
        [],
        [{"type": "message", "role": "assistant", "content": []}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}],
        [{"type": "function_call", "call_id": "c", "name": "now", "arguments": "{"}],
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_answers_of_other_servers_are_taken(name, engine, with_tools, serve):
    """An answer without text or calls was a 400 in each later turn."""
    engine.max_model_len = 4096
    http, route = serve(), ROUTES[name]
    for given in OTHERS[name]:
        message = given
        if name in ("Chat", "Ollama"):
            message = {"role": "assistant", **given}
        elif name == "Responses":
            message = {"output": given}
        answer = http.post(route.path, json=route.back(message) | {"stream": False})
        assert answer.status_code == 200, (given, answer.text)
        assert "X-Ignored-Params" not in answer.headers
        assert ("No." in engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)) == (
            "No." in str(given)
        )
