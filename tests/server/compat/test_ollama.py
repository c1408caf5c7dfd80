"""Ollama's shape beyond plain texts: tools, vectors, what is told of the model, errors."""

from __future__ import annotations

import json
import math
import re

import msgspec
import pytest

from quire.protocol.decode import decode_body
from quire.protocol.ollama.ollama import (
    OllamaChatRequest,
    OllamaFunction,
    OllamaMessage,
    OllamaToolCall,
    read_keep_alive,
)
from quire.server.access.authentication import scope_of
from quire.server.compat.ollama_models import parameter_size
from quire.settings.config import EngineConfig, ModelOptions
from quire.text.templates.chat_template import ChatTemplate
from tests.server.compat.test_other_shapes import lines
from tests.server.test_tools import TEMPLATE

CHAT, GENERATE = "/api/chat", "/api/generate"
HELLO = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {Rome}}\n</tool_call>'


@pytest.fixture
def calling(serve, engine, tokenizer, monkeypatch):
    """A client of a model whose template shows tools."""
    template = ChatTemplate({"default": TEMPLATE}, tokenizer.special_tokens)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    engine.max_model_len = 4096
    return serve()


def test_calls_have_objects_as_arguments(calling, engine):
    client = calling
    engine.text = f"Well.{CALL}{CALL}"
    body = {"messages": [HELLO], "tools": [TOOL]}
    calls = [
        {"function": {"index": i, "name": "get_weather", "arguments": {"city": "Rome"}}}
        for i in range(2)
    ]
    answer = client.post(CHAT, json=body | {"stream": False}).json()
    ids = [call.pop("id") for call in answer["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and all(call_id.startswith("call_") for call_id in ids)
    assert answer["message"] == {"role": "assistant", "content": "Well.", "tool_calls": calls}
    assert answer["done_reason"] == "stop"
    found = lines(client.post(CHAT, json=body))
    assert "".join(line["message"]["content"] for line in found) == "Well."
    (made,) = (line["message"]["tool_calls"] for line in found if "tool_calls" in line["message"])
    assert [{"function": call["function"]} for call in made] == calls
    assert found[-1]["done"] and found[-1]["message"]["content"] == ""


def test_a_call_that_cannot_be_made_is_told(calling, engine):
    client = calling
    engine.text = BROKEN
    body = {"messages": [HELLO], "tools": [TOOL], "stream": False}
    message = client.post(CHAT, json=body).json()["message"]
    assert "tool_calls" not in message
    (error,) = message["tool_call_errors"]
    assert "must be a JSON object" in error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "value", ['"\\ud800"', "1e999", "9" * 5000, "NaN", "[" * 3000 + "]" * 3000]
)
def test_a_call_that_no_object_can_hold_is_told_with_the_others(calling, engine, value, stream):
    """It was a 500, and the whole answer was lost."""
    client = calling
    engine.text = f"Well.{CALL.replace(chr(34) + 'Rome' + chr(34), value)}{CALL}"
    engine.max_model_len = 32768
    body = {"messages": [HELLO], "tools": [TOOL], "stream": stream}
    response = client.post(CHAT, json=body)
    found = lines(response) if stream else [response.json()]
    assert response.status_code == 200 and found[-1]["done_reason"] == "stop"
    (message,) = (line["message"] for line in found if "tool_call_errors" in line["message"])
    (error,) = message["tool_call_errors"]
    assert error.startswith("[tool_calls[0].function.arguments] must be a JSON object; ")
    (call,) = message["tool_calls"]
    assert call["function"]["arguments"] == {"city": "Rome"}
    assert "".join(line["message"]["content"] for line in found) == "Well."


def test_a_history_of_calls_renders_as_in_chat_completions(live):
    """Calls have no ids there; each answer is of the call with its name, in order."""
    ours = [
        HELLO,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "b", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "2", "tool_call_id": "b", "name": "g"},
        {"role": "tool", "content": "1", "tool_call_id": "a"},
    ]
    theirs = [
        HELLO,
        {
            "role": "assistant",
            "tool_calls": [
                {"function": {"name": "f", "arguments": {"x": 1}}},
                {"function": {"name": "g", "arguments": {}, "index": 1}},
            ],
        },
        {"role": "tool", "content": "2", "tool_name": "g"},
        {"role": "tool", "content": "1"},
    ]
    settings = {"temperature": 0, "max_tokens": 8}
    (choice,) = live.http.post("/v1/chat/completions", json={"messages": ours, **settings}).json()[
        "choices"
    ]
    body = {"messages": theirs, "options": {"temperature": 0, "num_predict": 8}, "stream": False}
    answer = live.http.post(CHAT, json=body)
    assert answer.json()["message"]["content"] == choice["message"]["content"], answer.text
    assert "x-ignored-params" not in answer.headers


def test_calls_are_answered_by_name_then_in_order():
    calls = [{"function": {"name": name, "arguments": {}}} for name in "fgg"]
    answers = [{"role": "tool", "tool_name": name, "content": ""} for name in ("g", "f", "g")]
    messages = [HELLO, {"role": "assistant", "tool_calls": calls}, *answers, *answers[:1]]
    body, ignored = decode_body(json.dumps({"messages": messages}).encode(), OllamaChatRequest)
    chat = body.our_request()
    f, g1, g2 = (call.id for call in chat.messages[1].tool_calls)
    assert len({f, g1, g2}) == 3 and {len(f), len(g1)} == {9}, "Mistral's templates take nine"
    assert [message.tool_call_id for message in chat.messages[2:]] == [g1, f, g2, None]
    assert chat.messages[1].tool_calls == body.our_request().messages[1].tool_calls
    assert not ignored


def test_answers_find_their_calls_in_linear_time():
    """Each went through the names of all calls that were open."""
    compared = [0]

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared[0] += 1
            return str.__eq__(self, other)

    names = [Name(f"f{i}") for i in range(500)]
    calls = [OllamaToolCall(function=OllamaFunction(name=name, arguments={})) for name in names]
    answers = [
        OllamaMessage(role="tool", tool_name=name) for name in [*names[::-2], *["other"] * 250]
    ]
    history = [OllamaMessage(role="assistant", tool_calls=calls), *answers]
    made, *answered = OllamaChatRequest(messages=history).our_request().messages
    ids = [call.id for call in made.tool_calls]
    assert [message.tool_call_id for message in answered] == [*ids[::-2], *ids[::2]]
    assert compared[0] < 10 * len(names)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(live, stream):
    options = {"temperature": 0, "num_predict": 4}
    asked = {"logprobs": True, "top_logprobs": 2, "options": options, "stream": stream}
    for path, prompt in (
        (CHAT, {"messages": [HELLO]}),
        (GENERATE, {"prompt": "Hi"}),
        (GENERATE, {"prompt": "Hi", "raw": True}),
    ):
        response = live.http.post(path, json=prompt | asked)
        found = lines(response) if stream else [response.json()]
        entries = [entry for line in found for entry in line.get("logprobs", [])]
        assert len(entries) == found[-1]["eval_count"], response.text
        assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (GENERATE, {}),
        (GENERATE, {"prompt": "", "keep_alive": "5m"}),
        (GENERATE, {"prompt": "", "keep_alive": 0}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [], "keep_alive": "0s"}),
    ],
)
def test_without_a_prompt_it_is_loaded_and_a_model_that_stays_is_not_said_to_go(
    client, engine, path, body
):
    answer = client.post(path, json=body)
    assert (answer.json()["done"], answer.json()["done_reason"]) == (True, "load")
    assert engine.params == []
    assert answer.headers.get("x-ignored-params") == (
        "keep_alive" if "keep_alive" in body else None
    )


def test_a_call_without_text_has_no_content():
    """Ollama's messages cannot say so: templates that ask for none lost such calls."""
    call = {"function": {"name": "now", "arguments": {}}}
    messages = [
        {"role": "assistant", "content": text, "tool_calls": calls}
        for text, calls in (("", [call]), ("So.", [call]), ("", []))
    ]
    asked = msgspec.convert({"messages": messages}, OllamaChatRequest).our_request()
    assert [message.content for message in asked.messages] == [None, "So.", ""]


def test_vectors(live):
    ours = live.http.post("/v1/embeddings", json={"input": ["a", "b"]}).json()
    vectors = [item["embedding"] for item in ours["data"]]
    answer = live.http.post("/api/embed", json={"model": "tiny:latest", "input": ["a", "b"]}).json()
    assert answer["embeddings"] == vectors and answer["model"] == "tiny"
    assert answer["prompt_eval_count"] == ours["usage"]["prompt_tokens"]
    assert live.http.post("/api/embed", json={"input": "a"}).json()["embeddings"] == vectors[:1]
    older = live.http.post("/api/embeddings", json={"prompt": "a"}).json()
    assert older == {"embedding": vectors[0]}
    mixed = live.http.post("/api/embed", json={"prompt": "a"}).json()
    assert mixed["embeddings"] == vectors[:1], "not those of an empty text"
    both = live.http.post("/api/embed", json={"prompt": "a", "input": "b"})
    assert both.status_code == 400 and "[input] must be absent" in both.json()["error"]
    wrong = live.http.post("/api/embed", json={"input": "a", "dimensions": 3})
    assert wrong.status_code == 400 and "dimensions" in wrong.json()["error"]


@pytest.mark.parametrize(
    ("path", "field"), [("/api/embed", "input"), ("/api/embeddings", "prompt")]
)
def test_the_end_of_a_long_text_has_no_vector_unless_it_must(brief, path, field):
    """``truncate`` was taken in silence, and long texts were refused whatever it said."""
    longest = brief.service.engine.max_model_len
    tokenizer = brief.service.engine.tokenizer
    num_own = len(tokenizer.encode("a")) - 1
    fits = "word " * longest
    fits = fits[: longest - num_own]
    answers = [
        brief.http.post(path, json={field: text, **more}).json()
        for text, more in ((fits, {}), (fits + "more", {}), (fits * 40, {"truncate": True}))
    ]
    vectors = [answer.get("embeddings", [answer.get("embedding")]) for answer in answers]
    assert vectors[0] == vectors[1] == vectors[2] and vectors[0][0]
    refused = brief.http.post(path, json={field: fits + "more", "truncate": False})
    assert refused.status_code == 400 and "maximum context length" in refused.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/generate", {"inputs": "a", "parameters": {}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "stream": False}),
        ("/api/generate", {"prompt": "a", "stream": False}),
    ],
)
def test_no_route_takes_truncation_in_silence(live, path, body):
    for name, value in (("truncate_prompt_tokens", 3), ("truncate", 3)):
        within = "parameters" in body
        sent = body | ({"parameters": {name: value}} if within else {name: value})
        answer = live.http.post(path, json=sent)
        named = answer.headers.get("X-Ignored-Params", "")
        assert name in named or (answer.status_code == 400 and name in answer.text), answer.text


def test_what_is_told_of_the_model(client):
    (listed,) = client.get("/api/tags").json()["models"]
    (running,) = client.get("/api/ps").json()["models"]
    assert running.items() >= listed.items()
    assert running["context_length"] == 256 and running["size_vram"] == 0
    assert listed["name"] == listed["model"] == "quire-tiny:latest"
    assert re.fullmatch("[0-9a-f]{64}", listed["digest"]), "its clients cut it to 12 characters"
    assert re.fullmatch(r"\d+", listed["details"]["parameter_size"]), "of a scripted model"
    names = ("quire-tiny:latest", "quire-tiny", "Quire-Tiny", "library/quire-tiny:LATEST")
    for body in ({"name": "quire-tiny"}, *({"model": name} for name in names)):
        shown = client.post("/api/show", json=body).json()
        info = shown["model_info"]
        assert info["general.architecture"] == "scripted" and info["general.parameter_count"] > 0
        assert info["scripted.context_length"] == 256
        assert shown["parameters"] == f"{'temperature':<30} 0.0"
        assert "FROM quire-tiny:latest\nPARAMETER temperature 0.0\n" in shown["modelfile"]
        assert "completion" in shown["capabilities"] and shown["details"] == listed["details"]
        assert "messages" in shown["template"]


@pytest.mark.parametrize("path", [CHAT, GENERATE, "/api/show", "/api/embed", "/api/embeddings"])
def test_a_name_of_no_model_is_refused_as_in_ollama(client, path):
    answer = client.post(path, json={"model": "other:1b"})
    assert (answer.status_code, answer.json()["error"]) == (404, "model 'other:1b' not found")


def test_a_name_with_a_tag_stays(serve):
    names = ("tiny:1b", "host:5000/tiny", "tiny", "/models/my model")
    config = EngineConfig(model=ModelOptions(served_model_name=names))
    client = serve(config)
    listed = [model["name"] for model in client.get("/api/tags").json()["models"]]
    assert listed == [
        "tiny:1b",
        "host:5000/tiny:latest",
        "tiny:latest",
        "/models/my model:latest",
    ]
    for name in (*names, *listed):
        answer = client.post(GENERATE, json={"model": name, "prompt": "x", "stream": False})
        assert answer.json()["model"] in names and answer.json()["done"], answer.text


@pytest.mark.parametrize("playground", [False, True])
def test_the_command_line_of_ollama_finds_a_server(serve, playground):
    """It asks for ``HEAD /`` before each command."""
    client = serve(playground=playground)
    head, page = client.head("/"), client.get("/")
    assert head.status_code == page.status_code == 200 and not head.content
    assert (page.text == "Ollama is running") is not playground
    assert client.head("/api/version").status_code == 200


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (1.5, 1.5),
        (300, 300.0),
        (-1, math.inf),
        ("0", 0.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("300ms", 0.3),
        ("2us3ns", 2.003e-6),
        ("-1m", math.inf),
        ("+1m", 60.0),
        ("-0s", 0.0),
        ("9" * 309 + "s" + "1" * 309 + "s", math.inf),
    ],
)
def test_how_long_a_model_stays(value, seconds):
    assert read_keep_alive(value) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "value",
    [
        "5",
        "",
        "m",
        "5 m",
        "1m-2s",
        "٥m",
        "1e3s",
        "-",
        ".m",
        pytest.param("1" * 100_000, id="long"),
        pytest.param("1h" * 100_000, id="many"),  # 4 MB of them kept the event loop for a second
    ],
)
@pytest.mark.parametrize("path", [CHAT, GENERATE, "/api/embed", "/api/embeddings"])
def test_a_malformed_keep_alive_is_refused(client, value, path):
    answer = client.post(path, json={"keep_alive": value})
    assert answer.status_code == 400 and answer.json()["error"].startswith("[keep_alive] must be")
    for other in (True, [1], {"s": 1}):
        assert client.post(path, json={"keep_alive": other}).status_code == 400


def test_what_other_clients_send(client, engine):
    """Open WebUI sends roles, ids and options as its users and other servers wrote them."""
    call = {"index": 0, "id": None, "function": {"name": "f", "arguments": {}, "index": 0}}
    body = {
        "messages": [
            {"role": "User", "content": "Hi"},
            {"role": "ASSISTANT", "content": "", "tool_calls": [call]},
            {"role": "Tool", "content": "1", "tool_call_id": "x"},
        ],
        "options": {
            "repeat_last_n": 64, "num_keep": 24, "mirostat": 0, "mirostat_eta": 0.1, "seed": -1,
            "num_ctx": 4096, "typical_p": 1.0, "tfs_z": 1,
        },
        "truncate": True, "shift": True, "keep_alive": "5m", "stream": False,
    }  # fmt: skip
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    ignored = "options.num_keep, options.mirostat_eta, options.num_ctx, truncate, shift"
    assert set(answer.headers["x-ignored-params"].split(", ")) == {
        *ignored.split(", "),
        "keep_alive",
    }
    assert engine.params[-1].seed is None
    hard, _ = decode_body(b'{"think": "max", "messages": []}', OllamaChatRequest)
    assert hard.our_request().reasoning_effort == "max"
    wrong = client.post(CHAT, json={"messages": [{"role": "robot", "content": ""}]})
    assert wrong.json()["error"].startswith("[messages[0].role] must be system, user, assistant")
    images = [{"role": "user", "content": "", "images": ["aGk="]}]
    wrong = client.post(CHAT, json={"messages": images})
    assert wrong.status_code == 400 and "[messages[0].images]" in wrong.json()["error"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
@pytest.mark.parametrize("window", [-1, 0, 64])
def test_penalties_over_the_last_tokens_were_refused(client, engine, path, window):
    """``repeat_last_n: 64``, Ollama's own default, was a 400 with any penalty."""
    body = {"prompt": "x"} if path == GENERATE else {"messages": [HELLO]}
    body["options"] = {"repeat_penalty": 1.1, "repeat_last_n": window}
    answer = client.post(path, json=body)
    assert answer.status_code == 200 and "x-ignored-params" not in answer.headers
    params = engine.params[-1]
    assert (params.repetition_penalty, params.repeat_last_n) == (1.1, window)
    body["options"]["repeat_last_n"] = -2
    assert "options.repeat_last_n" in client.post(path, json=body).json()["error"]


@pytest.mark.parametrize("body", [{"input": ""}, {"input": []}, {"input": None}, {}])
def test_nothing_has_no_vectors(client, body):
    answer = client.post("/api/embed", json=body).json()
    assert answer["embeddings"] == [] and answer["model"] == "quire-tiny"
    assert client.post("/api/embeddings", json={"prompt": ""}).json() == {"embedding": []}


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12"), (1999, "1K"), (494_032_768, "494.03M"), (7_615_616_512, "7.6B"), (2e9, "2B")],
)
def test_parameter_sizes(count, text):
    assert parameter_size(int(count)) == text


def test_a_body_need_not_be_declared_unless_a_page_may_have_sent_it(client):
    content = json.dumps({"prompt": "x", "stream": False}).encode()
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        assert client.post(GENERATE, content=content, headers=headers).status_code == 200
        page = headers | {"sec-fetch-site": "cross-site"}
        answer = client.post(GENERATE, content=content, headers=page)
        assert answer.status_code == 415
        assert "application/json" in answer.json()["error"]
        page = headers | {"origin": "http://evil.example"}
        assert client.post(GENERATE, content=content, headers=page).status_code == 403
        answer = client.post("/v1/completions", content=content, headers=headers)
        assert answer.status_code == 415, "only the clients of Ollama leave it out"


def test_errors_are_texts(serve):
    client = serve(api_key="secret")
    key = {"authorization": "Bearer secret"}
    for headers, method, path, body, status in (
        ({}, "POST", CHAT, {"messages": [HELLO]}, 401),
        (key, "POST", CHAT, {"messages": [HELLO], "model": "other"}, 404),
        (key, "POST", CHAT, {"messages": 5}, 400),
        (key, "GET", CHAT, None, 405),
        (key, "POST", "/api/nothing", {}, 404),
    ):
        answer = client.request(method, path, json=body, headers=headers)
        assert answer.status_code == status
        assert isinstance(answer.json()["error"], str), answer.text


def test_scopes():
    assert {scope_of(f"/api/{name}") for name in ("tags", "show", "ps", "version")} == {"read"}
    paths = ("generate", "chat", "embed", "embeddings")
    assert {scope_of(f"/api/{name}") for name in paths} == {"infer"}
