"""Settings that contradict each other are the client's error, on every route that takes them."""

from __future__ import annotations

import httpx2
import pytest

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
#: With the field that the error names; a text stands for its token's id.
AT_ONCE = {
    "bad words": ({"allowed_token_ids": ["a"], "bad_words": ["a", "c"]}, "allowed_token_ids"),
    "biases": ({"allowed_token_ids": ["a"], "logit_bias": {"a": -100}}, "allowed_token_ids"),
    "a stop before its time": (
        {"allowed_token_ids": ["a"], "stop_token_ids": ["a"], "min_tokens": 2}, "allowed_token_ids",
    ),
    "a schema": ({"allowed_token_ids": ["a"], "response_format": SCHEMA}, "response_format"),
    "a choice": (
        {"bad_words": ["a"], "structured_outputs": {"choice": ["ab"]}}, "structured_outputs",
    ),
    "more at least than at most": ({"min_tokens": 9, "max_tokens": 4}, "min_tokens"),
}  # fmt: skip
#: Found out after some tokens.
LATER = {
    "a longer bad word": {"allowed_token_ids": ["a"], "bad_words": ["aaa"]},
    "a choice": {"allowed_token_ids": ["a", "7"], "structured_outputs": {"choice": ["ab"]}},
    "a bad word in a choice": {"bad_words": ["b"], "structured_outputs": {"choice": ["ab", "acb"]}},
    "a regex": {"bad_words": ["b"], "structured_outputs": {"regex": "a{3}b"}},
}
ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
}


def bodies(http, settings):
    """Yield each route with its body."""

    def token_id(text):
        found = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
        return found["tokens"][-1]

    given = dict(settings)
    for name in ("allowed_token_ids", "stop_token_ids"):
        if name in given:
            given[name] = [token_id(text) for text in given[name]]
    if "logit_bias" in given:
        given["logit_bias"] = {token_id(text): bias for text, bias in given["logit_bias"].items()}
    for path, body in ROUTES.items():
        fields = {"temperature": 0, "max_tokens": 8} | body | given
        if path == "/v1/responses":
            fields["max_output_tokens"] = fields.pop("max_tokens")
            form = fields.pop("response_format", None)
            if form is not None:
                fields["text"] = {"format": {"type": form["type"], **form["json_schema"]}}
        yield path, fields


@pytest.fixture
def process(crowded_server):
    with httpx2.Client(base_url=crowded_server.address, timeout=60) as client:
        yield client


@pytest.mark.parametrize("where", ["process", "live"])
def test_what_leaves_no_token_is_the_clients_error(where, request):
    """Each was a 500, "The engine failed on this request", which clients try again."""
    found = request.getfixturevalue(where)
    http = found if where == "process" else found.http
    for name, (settings, param) in AT_ONCE.items():
        for path, body in bodies(http, settings):
            answer = http.post(path, json=body)
            assert answer.status_code == 400, (name, path, answer.text)
            named = answer.json()["error"]["param"]
            assert named == ("text.format" if "text" in body else param), (name, path)


@pytest.mark.parametrize("name", LATER)
def test_what_leaves_no_token_later_is_the_clients_error(name, live):
    for path, body in bodies(live.http, LATER[name]):
        answer = live.http.post(path, json=body)
        assert answer.status_code == 400, (path, answer.text)
        assert "must leave a token" in answer.json()["error"]["message"]
        streamed = live.http.post(path, json=body | {"stream": True}).text
        assert "must leave a token" in streamed and "completed" not in streamed
    live.wait_until_idle()


def test_least_tokens_beyond_the_context_are_refused(live):
    body = {"messages": [{"role": "user", "content": "a"}], "min_tokens": 10**6}
    answer = live.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "maximum context length" in answer.json()["error"]["message"]
