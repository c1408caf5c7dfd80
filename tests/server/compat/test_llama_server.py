"""llama-server's shape of a completion, and what it tells of itself."""

from __future__ import annotations

import json

import pytest

from quire.core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from quire.server.access.authentication import scope_of
from quire.server.compat.line_limits import LineLimits
from tests.server.compat.test_other_shapes import N, case, events  # noqa: F401

URL = "/completion"


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_whole(live, case, path):  # noqa: F811
    prompt, expected = case
    body = {"prompt": prompt, "n_predict": N, "temperature": 0, "cache_prompt": True}
    answer = live.http.post(path, json=body).json()
    assert (answer["content"], answer["stop"], answer["stop_type"]) == (expected, True, "limit")
    assert (answer["index"], answer["id_slot"], answer["tokens"]) == (0, -1, [])
    assert (answer["tokens_predicted"], answer["prompt"], answer["model"]) == (N, prompt, "tiny")
    num_prompt = len(live.http.post("/tokenize", json={"prompt": prompt}).json()["tokens"])
    assert answer["tokens_evaluated"] == num_prompt
    assert answer["tokens_cached"] == num_prompt + N
    assert answer["generation_settings"]["n_predict"] == N and answer["truncated"] is False
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == num_prompt
    assert timings["predicted_n"] == N and timings["predicted_per_second"] > 0
    tokens = live.http.post(path, json=body | {"return_tokens": True}).json()["tokens"]
    assert len(tokens) == N and all(type(token) is int for token in tokens)


def test_streamed(live, case):  # noqa: F811
    prompt, expected = case
    body = {"prompt": prompt, "n_predict": N, "temperature": 0, "stream": True}
    found = events(live.http.post(URL, json=body | {"timings_per_token": True}), "data: ")
    assert "".join(event["content"] for event in found) == expected
    assert [event["stop"] for event in found] == [False] * (len(found) - 1) + [True]
    counts = [event["tokens_predicted"] for event in found]
    assert counts == sorted(counts) and counts[-1] == N
    assert sum(len(event["tokens"]) for event in found) == N
    assert found[0]["timings"]["predicted_n"] == counts[0] and found[-1]["stop_type"] == "limit"
    assert "timings" not in events(live.http.post(URL, json=body), "data: ")[0]


def test_several_prompts(live, case):  # noqa: F811
    prompt, expected = case
    body = {"prompt": [prompt, "b"], "n_predict": N, "temperature": 0}
    first, second = live.http.post(URL, json=body).json()
    assert (first["content"], first["index"], second["index"]) == (expected, 0, 1)
    assert (first["tokens_predicted"], second["prompt"]) == (N, "b")
    refused = live.http.post(URL, json=body | {"stream": True})
    assert refused.json()["error"]["param"] == "prompt"


def test_ends(client, engine):
    answer = client.post(URL, json={"prompt": "x"}).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("eos", "")
    assert engine.params[-1].max_tokens is None, "without a limit: what is left of the context"
    engine.text = "a\nb"
    assert client.post(URL, json={"prompt": "x"}).json()["has_new_line"] is True


def test_stop_words_and_settings(live, case):  # noqa: F811
    prompt, expected = case
    stop = expected[3:5]
    body = {"prompt": prompt, "n_predict": N, "temperature": 0, "stop": [stop], "seed": -1}
    answer = live.http.post(URL, json=body).json()
    assert answer["content"] == expected[: expected.index(stop)]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", stop)
    for constraint in (
        {"json_schema": {"enum": [1, 2]}},
        {"grammar": 'root ::= "1" | "2"'},
    ):
        answer = live.http.post(URL, json={"prompt": "a", "n_predict": 9} | constraint).json()
        assert answer["content"] in ("1", "2")
    body = {"prompt": "a", "n_predict": 3, "temperature": 0, "n_probs": 2}
    (first, *_) = live.http.post(URL, json=body).json()["completion_probabilities"]
    assert first["id"] == first["top_logprobs"][0]["id"] and len(first["top_logprobs"]) == 2
    banned = {"logit_bias": [[first["id"], False]]}
    (other, *_) = live.http.post(URL, json=body | banned).json()["completion_probabilities"]
    assert other["id"] != first["id"]
    banned = {"logit_bias": {str(first["id"]): -100}}
    (same, *_) = live.http.post(URL, json=body | banned).json()["completion_probabilities"]
    assert same["id"] == other["id"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n_predict": -2}, "n_predict"),
        ({"repeat_last_n": -2, "repeat_penalty": 1.1}, "repeat_last_n"),
        ({"adaptive_target": 0.5}, "adaptive_target"),
        ({"n": 2}, "n"),
        ({"n_cmpl": 2}, "n_cmpl"),
        ({"prompt": ["x", "y"], "n_indent": 2}, "prompt"),
        ({"prompt": ["x", "y"], "t_max_predict_ms": 9}, "prompt"),
        ({"n_predict": 999}, "prompt"),
        ({"mirostat": 2}, "mirostat"),
        ({"temperature": -1}, "temperature"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"cache_prompt": False}, "cache_prompt"),
        ({"logit_bias": [["word" * 5000, 1]]}, "logit_bias"),
        ({"logit_bias": [[1, 500]]}, "logit_bias"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": [[2**31, 1]]}, "logit_bias"),
        ({"logit_bias": [[-1, 1]]}, "logit_bias"),
        ({"grammar": "root ::= x", "json_schema": {}}, "json_schema"),
    ],
)
def test_what_cannot_be_done_is_named(client, engine, fields, param):
    answer = client.post(URL, json={"prompt": "x", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert engine.params == []


def test_a_bias_that_is_true_does_nothing(client, engine):
    body = {"prompt": "x", "logit_bias": {"1": True, "2": False, "003": 1.5}}
    assert client.post(URL, json=body).status_code == 200
    assert engine.params[0].logit_bias == {2: -100.0, 3: 1.5}


def test_a_bias_of_a_text_is_of_each_of_its_tokens(client, engine, tokenizer):
    for given in ({"cat": -3}, [["cat", -3]]):
        assert client.post(URL, json={"prompt": "x", "logit_bias": given}).status_code == 200
        wanted = dict.fromkeys(tokenizer.encode("cat", add_special_tokens=False), -3.0)
        assert engine.params[-1].logit_bias == wanted and len(wanted) == 3
    client.post(URL, json={"prompt": "x", "logit_bias": [["1", -3], [2, 1]]})
    assert engine.params[-1].logit_bias == {tokenizer.encode("1", False)[0]: -3.0, 2: 1.0}


@pytest.mark.parametrize(
    ("samplers", "left", "named"),
    [
        (["penalties", "temperature", "top_k", "top_p", "min_p"], "ktpme", ""),
        ("etkpm", "ktpme", ""),
        (["top_k", "temperature"], "kt", "min_p, repeat_penalty, top_p, samplers"),
        (["dry", "temperature", "xtc"], "t", "min_p, repeat_penalty, top_k, top_p"),
        ([], "", "min_p, repeat_penalty, temperature, top_k, top_p"),
    ],
)
def test_samplers_that_are_left_out_do_nothing(client, engine, samplers, left, named):
    given = {"temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.5}
    answer = client.post(URL, json={"prompt": "x", "samplers": samplers} | given)
    assert answer.headers.get("x-ignored-params", "") == named
    params = engine.params[-1]
    assert params.temperature == (0.5 if "t" in left else 1.0)
    assert params.top_k == (7 if "k" in left else 0)
    assert params.top_p == (0.5 if "p" in left else 1.0)
    assert params.min_p == (0.1 if "m" in left else 0.0)
    assert params.repetition_penalty == (1.5 if "e" in left else 1.0)


def test_what_does_nothing_is_named(client):
    body = {"prompt": "x", "samplers": ["top_k", "infill"], "n_keep": 3}
    ignored = client.post(URL, json=body | {"top_p": 0.5}).headers["x-ignored-params"]
    assert ignored == "n_keep, top_p, samplers"
    declared = {"content-type": "application/x-www-form-urlencoded"}
    content = json.dumps({"prompt": "x"})
    assert client.post(URL, content=content, headers=declared).status_code == 200


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_under_openais_names(client, engine, name):
    client.post(URL, json={"prompt": "x", name: 3, "n": 1})
    client.post(URL, json={"prompt": "x", name: 3, "n_predict": 4})
    client.post(URL, json={"prompt": "x", name: -1})
    assert [params.max_tokens for params in engine.params] == [3, 4, None]
    assert client.post(URL, json={"prompt": "x", name: 0}).json()["tokens_predicted"] == 0


def test_of_no_tokens_only_the_prompt_is_computed(live, case):  # noqa: F811
    prompt, _ = case
    body = {"prompt": prompt, "n_predict": 0, "n_probs": 2, "return_tokens": True}
    answer = live.http.post(URL, json=body).json()
    assert (answer["content"], answer["tokens"], answer["stop_type"]) == ("", [], "limit")
    assert answer["tokens_predicted"] == 0 and answer["tokens_evaluated"] > 0
    (last,) = events(live.http.post(URL, json=body | {"stream": True}), "data: ")
    assert last["stop"] is True and last["content"] == ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("indent", "text"),
    [
        (0, "a\n  b\n\tc\nd"),
        (1, "a\n  b\n\tc\n"),
        (2, "a\n  b\n\t"),
        (3, "a\n  "),
    ],
)
def test_a_line_with_too_little_indentation_ends_the_text(client, engine, indent, text, stream):
    engine.text = "a\n  b\n\tc\nd"
    body = {"prompt": "x", "n_indent": indent, "stream": stream}
    response = client.post(URL, json=body)
    found = events(response, "data: ") if stream else [response.json()]
    assert "".join(event["content"] for event in found) == text
    assert found[-1]["stop_type"] == ("limit" if indent else "eos")
    assert found[-1]["has_new_line"] is True and engine.open_requests == set()
    assert engine.ended == ["closed" if indent else "finished"]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a", "b", "c\n", "d"], "abc\n"),
        (["a\n", "b", "c", "d"], "a\nbc"),
        (["a", "b", "c", "d\n", "e"], "abcd\n"),
        (["a", "b", "c", "d"], "abcd"),
    ],
)
async def test_time_ends_a_text_after_its_first_line(pieces, text):
    async def deltas():
        for number, piece in enumerate(pieces):
            times = RequestMetrics(first_token_time=1.0, last_token_time=1.0 + number)
            ended = number == len(pieces) - 1
            outputs = [CompletionOutput(0, piece, finish_reason="stop" if ended else None)]
            yield 0, RequestOutput("r", None, [1], None, outputs, ended, metrics=times)

    found = [output async for _, output in LineLimits(0, 1.5).apply(deltas())]
    assert "".join(output.outputs[0].text for output in found) == text
    assert [output.finished for output in found] == [False] * (len(found) - 1) + [True]
    cut = len(found) < len(pieces)
    assert found[-1].outputs[0].finish_reason == ("length" if cut else "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_fields_of_the_answer(client, stream):
    fields = ["content", "timings/prompt_n", "stop", "timings/no", "content/no", ""]
    response = client.post(URL, json={"prompt": "x", "response_fields": fields, "stream": stream})
    last = events(response, "data: ")[-1] if stream else response.json()
    assert last.keys() == {"content", "timings/prompt_n", "stop"}


def test_a_template_is_applied(client):
    body = {"messages": [{"role": "user", "content": "Hi <|im_end|>"}], "stream": True}
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert prompt.startswith("<|im_start|>user\nHi <|im_end|>")
    assert prompt.endswith("<|im_start|>assistant\n")
    closed = client.post("/apply-template", json=body | {"add_generation_prompt": False}).json()
    assert prompt.removesuffix("<|im_start|>assistant\n") == closed["prompt"]
    wrong = client.post("/apply-template", json={"messages": [{"role": "robot"}]})
    assert wrong.json()["error"]["param"] == "messages[0].role"
    assert client.post("/apply-template", json=body | {"model": "other"}).status_code == 404


def test_what_cannot_be_changed(client):
    for path in ("/props", "/slots/0?action=save"):
        answer = client.post(path, json={})
        assert answer.status_code == 501
        assert "This server does not support" in answer.json()["error"]["message"]


def test_props_and_slots(client, live):
    props = client.get("/props").json()
    params = props["default_generation_settings"]["params"]
    assert (params["temperature"], params["repeat_penalty"], params["n_predict"]) == (0, 1, -1)
    abilities = props["chat_template_caps"]
    assert abilities["supports_string_content"] and not abilities["supports_tools"]
    assert props["endpoint_slots"] and not props["endpoint_props"]
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["model_alias"] == "quire-tiny" and "messages" in props["chat_template"]
    slots = live.http.get("/slots").json()
    assert len(slots) == live.http.get("/props").json()["total_slots"] == 16
    assert not any(slot["is_processing"] for slot in slots)
    assert live.http.get("/slots?fail_on_no_slot=1").status_code == 200
    body = {"prompt": ["a"] * 16, "max_tokens": 32000, "ignore_eos": True, "stream": True}
    with live.http.stream("POST", "/v1/completions", json=body):
        live.wait_until_running(16)
        assert all(slot["is_processing"] for slot in live.http.get("/slots").json())
        assert live.http.get("/slots?fail_on_no_slot=1").status_code == 503
    live.wait_until_idle()


def test_scopes():
    assert {scope_of(URL), scope_of("/completions")} == {"infer"}
    assert {scope_of("/props"), scope_of("/slots")} == {"read"}


@pytest.mark.parametrize("name", ["response_fields", "samplers"])
@pytest.mark.parametrize("value", [["a"] * 257, ["a" * 65]])
def test_names_that_every_answer_repeats_are_few(client, name, value):
    """The answers to a thousand prompts each repeated a list of megabytes."""
    answer = client.post(URL, json={"prompt": ["a"] * 1000, "n_predict": 1, name: value})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(name)
