"""TGI's, Ollama's and Triton's shapes: the text of our own routes, whole and streamed."""

from __future__ import annotations

import json

import pytest

import quire
from quire.server.access.authentication import scope_of
from tests.server.websocket_client import Client

TGI, OLLAMA, TRITON = "/generate", "/api/generate", "/v2/models/tiny/generate"
PROMPTS = ("Grüße an alle", "a", "The", "12", "é")
N = 24


def events(response, before="data:", after="\n\n"):
    """Return the values of a stream that has no ``[DONE]``."""
    assert response.status_code == 200, response.text
    *parts, rest = response.text.split(after)
    assert rest == "" and all(part.startswith(before) for part in parts)
    return [json.loads(part.removeprefix(before)) for part in parts]


def lines(response):
    assert response.headers["content-type"] == "application/x-ndjson"
    return events(response, "", "\n")


@pytest.fixture
def case(live):
    """A prompt, and the text of our own route for the same greedy request.

    No end of sequence comes up, so that shapes without `ignore_eos` have the same text.
    """
    for prompt in PROMPTS:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": N}
        (choice,) = live.http.post("/v1/completions", json=body).json()["choices"]
        if choice["finish_reason"] == "length":
            return prompt, choice["text"]
    raise AssertionError("every prompt's text ends by itself")


def test_tgi(live, case):
    prompt, expected = case
    body = {"inputs": prompt, "parameters": {"max_new_tokens": N}}
    assert live.http.post(TGI, json=body).json() == {"generated_text": expected}
    body["parameters"] |= {"return_full_text": True, "details": True, "decoder_input_details": True}
    answer = live.http.post(TGI, json=body).json()
    assert answer["generated_text"] == prompt + expected
    details = answer["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", N)
    assert "".join(token["text"] for token in details["tokens"]) == expected
    token_ids = live.http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    assert [token["id"] for token in details["prefill"]] == token_ids
    logprobs = [token["logprob"] for token in details["prefill"]]
    assert logprobs[0] is None and all(value < 0 for value in logprobs[1:])


def test_tgi_streamed(live, case):
    prompt, expected = case
    body = {"inputs": prompt, "parameters": {"max_new_tokens": N, "details": True}}
    found = events(live.http.post(f"{TGI}_stream", json=body))
    assert [event["index"] for event in found] == list(range(1, N + 1))
    assert "".join(event["token"]["text"] for event in found) == expected
    assert all(event["generated_text"] is event["details"] is None for event in found[:-1])
    assert found[-1]["generated_text"] == expected
    assert found[-1]["details"] == {
        "finish_reason": "length",
        "generated_tokens": N,
        "seed": None,
        "input_length": len(live.http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]),
    }
    whole = live.http.post(TGI, json=body).json()["details"]["tokens"]
    for event, token in zip(found, whole, strict=True):
        assert event["token"] == token | {"logprob": pytest.approx(token["logprob"], abs=1e-3)}


def test_tgi_ends(client, engine):
    engine.text = "Aé"
    body = {"inputs": "x", "parameters": {"details": True}}
    answer = client.post(TGI, json=body).json()
    assert answer["generated_text"] == "Aé"
    assert answer["details"]["finish_reason"] == "eos_token"
    tokens = answer["details"]["tokens"]
    assert [token["special"] for token in tokens] == [False, False, False, True]
    assert "".join(token["text"] for token in tokens if not token["special"]) == "Aé"
    assert engine.params[-1].max_tokens == 100 and engine.params[-1].include_stop_str_in_output


def test_tgi_stops_behind_the_stop_string(live, case):
    prompt, expected = case
    stop = expected[3:5]
    body = {"inputs": prompt, "parameters": {"max_new_tokens": N, "stop": [stop], "details": True}}
    answer = live.http.post(TGI, json=body).json()
    end = expected.index(stop) + len(stop)
    assert answer["generated_text"] == expected[:end]
    assert answer["details"]["finish_reason"] == "stop_sequence"


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0.0),
        ({"do_sample": False}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"top_p": 0.5}, 1.0),
        ({"temperature": 0.3}, 0.3),
        ({"do_sample": True, "temperature": 0.3}, 0.3),
    ],
)
def test_tgi_draws_when_told_to(client, engine, parameters, temperature):
    client.post(TGI, json={"inputs": "x", "parameters": parameters})
    assert engine.params[-1].temperature == temperature


def test_tgi_seeded_and_constrained(live):
    sampled = {"temperature": 1.5, "seed": 7, "top_k": 9}
    body = {"prompt": "a", "max_tokens": N, **sampled}
    text = live.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    body = {"inputs": "a", "parameters": {"max_new_tokens": N, **sampled}}
    assert live.http.post(TGI, json=body).json()["generated_text"] == text
    grammar = {"type": "regex", "value": "[0-9]{3}"}
    body = {"inputs": "a", "parameters": {"grammar": grammar}}
    assert live.http.post(TGI, json=body).json()["generated_text"].isdigit()


def test_ollama(live, case):
    prompt, expected = case
    options = {"num_predict": N, "temperature": 0}
    body = {"model": "tiny:latest", "prompt": prompt, "raw": True, "options": options}
    answer = live.http.post(OLLAMA, json=body | {"stream": False}).json()
    assert (answer["model"], answer["response"], answer["done"]) == ("tiny", expected, True)
    assert (answer["done_reason"], answer["eval_count"], answer["load_duration"]) == (
        "length",
        N,
        0,
    )
    assert answer["created_at"].endswith("Z")
    found = lines(live.http.post(OLLAMA, json=body))
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert "".join(line["response"] for line in found) == expected
    last = found[-1]
    assert (last["response"], last["eval_count"]) == ("", N)
    assert last["prompt_eval_count"] == answer["prompt_eval_count"] > 0
    durations = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    assert {type(last[name]) for name in durations} == {int}
    assert "eval_count" not in found[0]


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_ollama_renders_the_template(live, system):
    messages = [{"role": "user", "content": PROMPTS[0]}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    body = {"messages": messages, "temperature": 0, "max_tokens": N}
    (choice,) = live.http.post("/v1/chat/completions", json=body).json()["choices"]
    options = {"num_predict": N, "temperature": 0}
    body = {"prompt": PROMPTS[0], "system": system, "options": options}
    found = lines(live.http.post(OLLAMA, json=body))
    assert "".join(line["response"] for line in found) == choice["message"]["content"]
    body = {"messages": messages, "options": options}
    found = lines(live.http.post("/api/chat", json=body))
    assert "".join(line["message"]["content"] for line in found) == choice["message"]["content"]
    answer = live.http.post("/api/chat", json=body | {"stream": False}).json()
    assert answer["message"] == {"role": "assistant", "content": choice["message"]["content"]}
    assert answer["done"] and "response" not in answer


def test_ollama_splits_off_the_reasoning(serve, engine):
    client = serve(reasoning_parser="qwen3")
    engine.text = "<think>Hm.</think>Yes."
    body = {"prompt": "x", "stream": False, "think": True}
    answer = client.post(OLLAMA, json=body).json()
    assert (answer["thinking"], answer["response"].strip()) == ("Hm.", "Yes.")
    found = lines(client.post(OLLAMA, json={"prompt": "x"}))
    assert "".join(line.get("thinking", "") for line in found) == "Hm."
    assert "".join(line["response"] for line in found).strip() == "Yes."


def test_ollama_formats(live):
    schema = {"enum": ["yes", "no"]}
    body = {"prompt": "x", "stream": False, "format": schema, "options": {"temperature": 0}}
    answer = live.http.post(OLLAMA, json=body).json()
    assert json.loads(answer["response"]) in ("yes", "no")


def test_ollama_small_routes(client):
    (model,) = client.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "quire-tiny:latest"
    assert client.get("/api/version").json() == {"version": quire.__version__}


@pytest.mark.parametrize("place", ["parameters", "top"])
def test_triton(live, case, place):
    prompt, expected = case
    given = {"max_tokens": N, "temperature": 0, "ignore_eos": True}
    body = {"text_input": prompt, "id": "7"}
    body |= {"parameters": given} if place == "parameters" else given
    answer = live.http.post(TRITON, json=body).json()
    assert answer == {
        "id": "7", "model_name": "tiny", "model_version": "1", "text_output": expected
    }  # fmt: skip
    found = events(live.http.post(f"{TRITON}_stream", json=body), "data: ")
    assert "".join(event["text_output"] for event in found) == expected
    assert {event["model_name"] for event in found} == {"tiny"}
    body["exclude_input_in_output"] = False
    assert live.http.post(TRITON, json=body).json()["text_output"] == prompt + expected
    found = events(live.http.post(f"{TRITON}_stream", json=body), "data: ")
    assert "".join(event["text_output"] for event in found) == prompt + expected


BODIES = {
    TGI: {"inputs": "x"},
    f"{TGI}_stream": {"inputs": "x"},
    OLLAMA: {"prompt": "x"},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}]},
    "/v2/models/quire-tiny/generate": {"text_input": "x"},
    "/v2/models/quire-tiny/generate_stream": {"text_input": "x"},
}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TGI, {}, "inputs"),
        (TGI, {"parameters": {"truncate": 5}}, "parameters.truncate"),
        (TGI, {"parameters": {"typical_p": 0.5}}, "parameters.typical_p"),
        (TGI, {"parameters": {"best_of": 2}}, "parameters.best_of"),
        (TGI, {"parameters": {"watermark": True}}, "parameters.watermark"),
        (TGI, {"parameters": {"temperature": -1}}, "parameters.temperature"),
        (TGI, {"parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        (TGI, {"parameters": {"max_new_tokens": 999}}, "inputs"),
        (TGI, {"parameters": {"top_p": "x"}}, "parameters.top_p"),
        (TGI, {"parameters": {"grammar": {"type": "regex", "value": {}}}}, "grammar.value"),
        (TGI, {"parameters": {"decoder_input_details": True}}, "decoder_input_details"),
        (
            f"{TGI}_stream",
            {"parameters": {"decoder_input_details": True, "details": True}},
            "decoder_input_details",
        ),
        (TGI, {"stream": True}, "stream"),
        (f"{TGI}_stream", {"stream": False}, "stream"),
        (OLLAMA, {"suffix": "b"}, "suffix"),
        (OLLAMA, {"images": ["b"]}, "images"),
        (OLLAMA, {"context": [1]}, "context"),
        (OLLAMA, {"think": True}, "think"),
        (OLLAMA, {"raw": True, "system": "b"}, "system"),
        (OLLAMA, {"format": "xml"}, "format"),
        (OLLAMA, {"options": {"mirostat": 1}}, "options.mirostat"),
        (OLLAMA, {"options": {"repeat_penalty": -1}}, "options.repeat_penalty"),
        (OLLAMA, {"options": {"num_predict": 0}}, "options.num_predict"),
        (OLLAMA, {"options": {"num_predict": 999}}, "prompt"),
        (OLLAMA, {"top_logprobs": 2}, "top_logprobs"),
        (OLLAMA, {"raw": True, "top_logprobs": 2}, "top_logprobs"),
        (OLLAMA, {"think": "very"}, "think"),
        ("/api/chat", {"tools": [{}]}, "tools[0].function"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "images": ["b"]}]},
            "messages[0].images",
        ),
        ("/v2/models/quire-tiny/generate", {}, "text_input"),
        ("/v2/models/quire-tiny/generate", {"stop_words": ["a"]}, "stop_words"),
        ("/v2/models/quire-tiny/generate", {"parameters": {"n": 2}}, "parameters.n"),
        ("/v2/models/quire-tiny/generate", {"parameters": {"stream": True}}, "stream"),
        (
            "/v2/models/quire-tiny/generate",
            {"seed": 1, "parameters": {"seed": 2}},
            "parameters.seed",
        ),
        ("/v2/models/quire-tiny/generate", {"temperature": -1}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, engine, path, body, param):
    base = {} if body == {} else BODIES[path]
    answer = client.post(path, json=base | body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["param"] is not None and error["param"].endswith(param), error
    assert param in error["error"] or "context length" in error["error"]
    assert (error["error_type"], error["code"]) == ("validation", 400)
    assert not engine.open_requests


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TGI, {"parameters": {"grammar": {"type": "regex", "value": "("}}}, "parameters.grammar"),
        (OLLAMA, {"format": {"type": "nothing"}}, "format"),
        (OLLAMA, {"raw": True, "format": {"type": "nothing"}}, "format"),
    ],
)
def test_what_no_grammar_can_be_made_of(live, path, body, param):
    answer = live.http.post(path, json=BODIES[path] | body)
    assert (answer.status_code, answer.json()["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        (TGI, {"parameters": {"foo": 1, "typical_p": 1.0}}, "parameters.foo"),
        (
            OLLAMA,
            {"keep_alive": "5m", "options": {"num_ctx": 8, "mirostat": 0}},
            "options.num_ctx, keep_alive",
        ),
        ("/v2/models/quire-tiny/generate", {"parameters": {"foo": 1}}, "parameters.foo"),
    ],
)
def test_what_does_nothing_is_named(serve, path, body, ignored):
    body = BODIES[path] | body
    answer = serve().post(path, json=body)
    assert (answer.status_code, answer.headers["x-ignored-params"]) == (200, ignored)
    assert serve(strict_params=True).post(path, json=body).status_code == 400


def test_unknown_models_and_keys(serve):
    client = serve()
    assert client.post(OLLAMA, json={"model": "x", "prompt": "x"}).status_code == 404
    assert client.post("/v2/models/x/generate", json={"text_input": "x"}).status_code == 404
    client = serve(api_key=("secret",))
    for path, body in BODIES.items():
        assert client.post(path, json=body).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert client.post(path, json=body, headers=headers).status_code == 200


def test_a_key_to_infer_is_enough():
    assert {scope_of(path) for path in BODIES} == {"infer"}
    assert {scope_of(path) for path in ("/api/tags", "/api/version")} == {"read"}


def test_a_failure_within_a_stream(client, engine):
    engine.fail_after = 2
    for path, body in BODIES.items():
        if path in (TGI, "/v2/models/quire-tiny/generate"):
            continue
        response = client.post(path, json=body)
        last = (lines if path.startswith("/api/") else events)(response)[-1]
        assert isinstance(last["error"], str) and last["code"] == 500


def test_a_client_that_leaves(live):
    body = {"prompt": "a", "options": {"num_predict": 20000}}
    with live.http.stream("POST", OLLAMA, json=body) as stream:
        found = stream.iter_lines()
        next(found)
    live.wait_until_idle()


STREAMED = {
    "/v1/completions": {"prompt": "x", "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "stream": True},
    "/v1/responses": {"input": "x", "stream": True},
    "/invocations": {"prompt": "x", "stream": True},
} | {path: body for path, body in BODIES.items() if not path.endswith("generate") or "api" in path}


@pytest.mark.parametrize("path", STREAMED)
def test_a_server_that_is_not_decoupled(serve, engine, path):
    client = serve(decoupled=False)
    answer = client.post(path, json=STREAMED[path])
    assert answer.status_code == 400
    assert "decoupled" in answer.text and '"param":"stream"' in answer.text
    assert engine.params == []
    if not path.endswith("_stream"):
        assert client.post(path, json=STREAMED[path] | {"stream": False}).status_code == 200


def test_a_server_that_is_not_decoupled_over_a_websocket(serve, engine):
    http = serve(decoupled=False)
    with Client(str(http.base_url), "/v1/completions") as client:
        client.ask({"prompt": "x"})
        (message,) = client.answers()
    assert "decoupled" in message["error"]["message"] and engine.params == []


def test_tgi_at_the_root(serve, engine):
    """The hub's client posts to the URL that it was given; a key guards that, not the page."""
    client = serve(api_key="secret")
    body = {"inputs": "x", "parameters": {"details": True}}
    assert client.get("/").status_code == 200
    refused = client.post("/", json=body)
    assert refused.status_code == 401 and "error_type" not in refused.json()
    headers = {"authorization": "Bearer secret"}
    (answer,) = client.post("/", json=body, headers=headers).json()
    assert answer == client.post(TGI, json=body, headers=headers).json()
    found = events(client.post("/", json=body | {"stream": True}, headers=headers))
    assert found[-1]["generated_text"] == engine.text
    info = client.get("/info", headers=headers).json()
    assert (info["model_id"], info["max_total_tokens"]) == ("quire-tiny", 256)
    assert (scope_of("/"), scope_of("/info")) == ("infer", "read")


def test_names_that_mean_no_model(serve):
    client = serve()
    for name in ("tgi", "dummy"):
        body = {"model": name, "messages": [{"role": "user", "content": "x"}]}
        answer = client.post("/v1/chat/completions", json=body).json()
        assert answer["model"] == "quire-tiny"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "json", "value": {"type": "object"}}, {"json": '{"type":"object"}'}),
        ({"type": "json_object", "value": {"type": "object"}}, {"json": '{"type":"object"}'}),
        (
            {"type": "json_schema", "value": {"name": "n", "schema": {"type": "object"}}},
            {"json": '{"type":"object"}'},
        ),
        ({"type": "regex", "value": "a+"}, {"regex": "a+"}),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "regex"}, None),
        ({"type": "json"}, None),
        ({"type": "regex", "value": {}}, None),
        ({"type": "json_schema", "value": {"name": "n"}}, None),
    ],
)
def test_response_formats_of_tgi_s_clients(client, engine, form, expected):
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
    answer = client.post("/v1/chat/completions", json=body)
    if expected is None:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "response_format.value")
        return
    asked = engine.params[-1].structured_outputs
    assert {name: getattr(asked, name) for name in expected} == expected
