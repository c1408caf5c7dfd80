"""The OpenAPI document names every route and agrees with what they answer."""

from __future__ import annotations

import jsonschema
import pytest

from quire.server.openai import openapi

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 1}


@pytest.fixture
def document(client):
    answer = client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_every_route_is_described(document):
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    known = {(method, path.replace(":path", "")) for method, path in openapi.OPERATIONS}
    assert described >= known
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["summary"] and "default" in operation["responses"], path


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/v1/chat/completions", CHAT),
        ("post", "/v1/completions", {"prompt": "Hi", "logprobs": 1, "echo": True}),
        ("post", "/tokenize", {"prompt": "Hi", "return_token_strs": True}),
        ("post", "/detokenize", {"tokens": [65]}),
        ("get", "/v1/models", None),
        ("post", "/v1/messages", {"messages": CHAT["messages"], "max_tokens": 3}),
        ("post", "/v1/messages", {"messages": CHAT["messages"]}),
        ("post", "/v1/messages/count_tokens", {"messages": CHAT["messages"]}),
        ("post", "/v1/completions", {"prompt": 5}),
    ],
)
def test_answers_fit_their_schema(client, document, method, path, body):
    answer = client.request(method, path, json=body)
    responses = document["paths"][path][method]["responses"]
    stated = responses["200" if answer.status_code == 200 else "default"]
    schema = stated["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), schema | {"components": document["components"]})


def test_with_keys_it_says_which_scope_a_route_needs(serve):
    client = serve(api_key=("k",))
    assert client.get("/openapi.json").status_code == 401
    document = client.get("/openapi.json", headers={"authorization": "Bearer k"}).json()
    assert "`infer`" in document["paths"]["/v1/completions"]["post"]["description"]
    assert "security" not in document["paths"]["/health"]["get"]
