"""Triton's ``infer``: tensors as JSON and as bytes; what does not fit is refused by its path."""

from __future__ import annotations

import json
import struct

import msgspec
import pytest

from quire.core.errors import RequestError
from quire.core.speculative_params import SpeculativeParams
from quire.protocol.triton import triton_tensors
from quire.protocol.triton.triton_tensors import MAX_DIMENSIONS, InputTensor
from quire.server.access.authentication import scope_of

URL = "/v2/models/quire-tiny/infer"
LENGTH = "inference-header-content-length"


def tensor(name, data, kind="BYTES", **more):
    return {"name": name, "shape": [len(data)], "datatype": kind, "data": data, **more}


def test_texts_are_those_of_completions(live):
    settings = {"max_tokens": 6, "temperature": 0}
    body = {"prompt": ["a", "The"], **settings}
    expected = [
        choice["text"] for choice in live.http.post("/v1/completions", json=body).json()["choices"]
    ]
    texts = tensor("text_input", ["a", "The"])
    url = "/v2/models/tiny/infer"
    for body in (
        {"inputs": [texts], "parameters": settings},
        {"inputs": [texts, tensor("sampling_parameters", [json.dumps(settings)])]},
        {"inputs": [texts, tensor("max_tokens", [6], "INT32"), tensor("temperature", [0], "FP32")]},
        {"inputs": [{**texts, "shape": [2, 1], "data": [["a"], ["The"]]}], "parameters": settings},
    ):
        answer = live.http.post(url, json=body).json()
        (output,) = answer["outputs"]
        assert (answer["model_name"], output["data"]) == ("tiny", expected)
        assert output["shape"] == body["inputs"][0]["shape"]
    body = {"inputs": [texts, tensor("exclude_input_in_output", [False], "BOOL")]}
    (output,) = live.http.post(url, json=body | {"parameters": settings}).json()["outputs"]
    assert output["data"] == ["a" + expected[0], "The" + expected[1]]


def with_bytes(inputs, data, **fields):
    """Return the content and the headers of a request in the binary form."""
    head = json.dumps({"inputs": inputs, **fields}).encode()
    return head + data, {LENGTH: str(len(head)), "content-type": "application/octet-stream"}


def binary(name, size, kind="BYTES"):
    return {"name": name, "shape": [1], "datatype": kind, "parameters": {"binary_data_size": size}}


def test_bytes_in_and_out(client, engine):
    text = "Hé".encode()
    data = struct.pack("<I", len(text)) + text + struct.pack("<i", 2)
    inputs = [binary("text_input", len(text) + 4), binary("max_tokens", 4, "INT32")]
    content, headers = with_bytes(inputs, data, parameters={"binary_data_output": True})
    answer = client.post(URL, content=content, headers=headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    size = int(answer.headers[LENGTH])
    (output,) = json.loads(answer.content[:size])["outputs"]
    assert answer.content[size:] == b"\x02\0\0\0" + engine.text[:2].encode()
    assert output["parameters"] == {"binary_data_size": 6} and "data" not in output
    assert engine.params[-1].max_tokens == 2
    content, headers = with_bytes(inputs, data)
    answer = client.post(URL, content=content, headers=headers)
    assert answer.json()["outputs"][0]["data"] == [engine.text[:2]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": [tensor("text_input", [])]}, "inputs[0].shape"),
        ({"inputs": [tensor("text_input", ["a"], "INT32")]}, "inputs[0].datatype"),
        ({"inputs": [tensor("text_input", ["a"], "FP8")]}, "inputs[0].datatype"),
        ({"inputs": [tensor("text_input", [5])]}, "inputs[0].data"),
        ({"inputs": [tensor("text_input", ["a"], shape=[3])]}, "inputs[0].data"),
        ({"inputs": [tensor("text_input", ["a"], shape=[-1])]}, "inputs[0].data"),
        ({"inputs": [tensor("text_input", ["a"], shape=[2**63 - 1] * 9)]}, "inputs[0].shape"),
        ({"inputs": [tensor("other", ["a"])]}, "inputs[0].name"),
        ({"inputs": [tensor("text_input", ["a"])] * 2}, "inputs[1].name"),
        (
            {"inputs": [tensor("text_input", ["a"]), tensor("top_k", [1, 2], "INT32")]},
            "inputs[1].shape",
        ),
        ({"inputs": [tensor("text_input", ["a"])], "outputs": [{"name": "x"}]}, "outputs[0].name"),
        ({"inputs": [tensor("text_input", ["a"])], "parameters": {"stream": True}}, "stream"),
        ({"inputs": [tensor("text_input", ["a"])], "parameters": {"top_p": "x"}}, "top_p"),
        ({"inputs": [tensor("text_input", ["a"])], "parameters": {"top_p": 7}}, "top_p"),
        (
            {"inputs": [tensor("text_input", ["a"]), tensor("sampling_parameters", ['{"n": 2}'])]},
            "sampling_parameters",
        ),
    ],
)
def test_what_is_wrong_is_named(client, engine, body, param):
    answer = client.post(URL, json=body)
    assert (answer.status_code, answer.json()["param"]) == (400, param), answer.text
    assert engine.params == []


def test_elements_cost_the_same_however_deep_they_are():
    """Each passed every list around it: 2 million in 400 lists kept the event loop for 18 s."""

    def values(data, shape):
        return InputTensor(name="stop", shape=shape, datatype="BYTES", data=data).values("x")

    data = ["a", "b"]
    for depth in range(1, MAX_DIMENSIONS):
        assert values(data, [1] * (depth - 1) + [2]) == ["a", "b"]
        data = [data]
    with pytest.raises(
        RequestError, match=r"\[x.data\] must have at most 8 dimensions; got 'more'"
    ):
        values([[data]], [2])
    most = triton_tensors.MAX_ELEMENTS
    assert len(values([["a"] * most], [most])) == most
    for many in (["a"] * (most + 1), [["a"], ["a"] * most], [[]] * (most + 1)):
        with pytest.raises(RequestError, match=f"must have at most {most} elements; got 'more'"):
            values(many, [most + 1])


SPECULATION = [
    (False, SpeculativeParams(num_speculative_tokens=0)),
    (True, None),
    ("false", SpeculativeParams(num_speculative_tokens=0)),
    ({"tokens": 0}, SpeculativeParams(num_speculative_tokens=0)),
    ('{"tokens": 0}', SpeculativeParams(num_speculative_tokens=0)),
]


@pytest.mark.parametrize(("value", "asked"), SPECULATION)
def test_a_request_says_how_its_tokens_are_proposed(client, engine, value, asked):
    text = value if isinstance(value, str) else json.dumps(value)
    infer = {"inputs": [tensor("text_input", ["a"])]}
    bodies = [
        ("generate", {"text_input": "a", "parameters": {"speculative": value}}),
        ("generate", {"text_input": "a", "speculative": value}),
        ("generate_stream", {"text_input": "a", "parameters": {"speculative": value}}),
        ("infer", infer | {"parameters": {"speculative": value}}),
        ("infer", {"inputs": [*infer["inputs"], tensor("speculative", [text])]}),
    ]
    for route, body in bodies:
        answer = client.post(f"/v2/models/quire-tiny/{route}", json=body)
        assert answer.status_code == 200, answer.text
        assert "x-ignored-params" not in answer.headers
        assert engine.params.pop().speculative == asked, (route, body)


WRONG_SPECULATION = [
    ("off", "[speculative] must be false, true or an object in JSON where it is a text; got 'off'"),
    ("[" * 5000, "[speculative] must be false, true or an object in JSON"),
    ("[" + "[]," * 20000 + "[]]", "[speculative] may hold at most 16384 objects and lists"),
    ("5", "[speculative] Expected `bool | object | null`, got `int`"),
    ('{"depth": 3}', "[speculative] Object contains unknown field `depth`"),
    ({"depth": 3}, "[PATHspeculative] Object contains unknown field `depth`"),
    ('{"tokens": 65}', "[speculative.tokens] Expected `int` <= 64"),
    ({"tokens": 65}, "[PATHspeculative.tokens] Expected `int` <= 64"),
    ({"tokens": 1, "num_speculative_tokens": 2}, "[speculative.tokens] must be what num_specul"),
]


@pytest.mark.parametrize(("value", "words"), WRONG_SPECULATION)
def test_what_is_wrong_about_speculation_is_named(client, engine, value, words):
    infer = {"inputs": [tensor("text_input", ["a"])], "parameters": {"speculative": value}}
    generate = {"text_input": "a", "parameters": {"speculative": value}}
    for route, body, path in (("infer", infer, ""), ("generate", generate, "parameters.")):
        answer = client.post(f"/v2/models/quire-tiny/{route}", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(words.replace("PATH", path)), answer.text
    assert engine.params == []


@pytest.mark.parametrize(
    ("size", "data", "length"),
    [
        (6, b"\x02\0\0\0ab", "5"),
        (6, b"\x02\0\0\0ab", "x"),
        (6, b"\x02\0\0\0ab", "99999"),
        (6, b"\x02\0\0\0ab", "9" * 5000),
        (6, b"\x09\0\0\0ab", None),
        (6, b"\x02\0\0\0\xff\xfe", None),
        (3, b"\x02\0\0", None),
        (9, b"\x02\0\0\0ab", None),
        (6, b"\x02\0\0\0ab and more", None),
        ("6", b"\x02\0\0\0ab", None),
        (-1, b"", None),
    ],
)
def test_bytes_that_do_not_fit(client, engine, size, data, length):
    content, headers = with_bytes([binary("text_input", size)], data)
    if length is not None:
        headers[LENGTH] = length
    answer = client.post(URL, content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    assert isinstance(answer.json()["error"], str) and engine.params == []


@pytest.mark.parametrize("kind", ["BYTES", "BOOL", "FP64"])
def test_elements_are_counted_before_they_become_a_list(kind):
    """A body of bools was a list of 32 million, and its JSON, before anything bounded it."""
    most = triton_tensors.MAX_ELEMENTS
    element = bytes(8 if kind == "FP64" else 4 if kind == "BYTES" else 1)

    def filled(*counts):
        inputs = [binary("stop", count * len(element), kind) for count in counts]
        raw = {"inputs": msgspec.Raw(json.dumps(inputs).encode())}
        found = triton_tensors.fill_inputs(raw, element * sum(counts))["inputs"]
        return [len(tensor["data"]) for tensor in json.loads(bytes(found))]

    assert filled(most // 2, most // 2) == [most // 2] * 2
    for counts in ((most + 1,), (1, most), (100 * most,)):
        with pytest.raises(RequestError, match=f"must leave at most {most} elements in all"):
            filled(*counts)


def test_elements_beyond_the_limit_are_not_read(monkeypatch):
    read, texts = [], triton_tensors._read_texts

    def recording(data, where):
        for text in texts(data, where):
            read.append(text)
            yield text

    monkeypatch.setattr(triton_tensors, "_read_texts", recording)
    raw = {"inputs": msgspec.Raw(json.dumps([binary("stop", 400_000)]).encode())}
    with pytest.raises(RequestError):
        triton_tensors.fill_inputs(raw, bytes(400_000))
    assert len(read) == triton_tensors.MAX_ELEMENTS + 1


def test_what_does_nothing_is_named(client):
    body = {"inputs": [tensor("text_input", ["a"])], "parameters": {"x": 1, "sequence_id": 5}}
    assert client.post(URL, json=body).headers["x-ignored-params"] == "parameters.x"


def test_a_page_may_not_send_bytes(client):
    content, headers = with_bytes([tensor("text_input", ["a"])], b"")
    headers["sec-fetch-site"] = "cross-site"
    assert client.post(URL, content=content, headers=headers).status_code == 415


def test_model_routes_and_their_scopes(serve, engine):
    client = serve()
    for path in ("/v2/models/quire-tiny", "/v2/models/quire-tiny/versions/1"):
        assert client.get(f"{path}/ready").status_code == 200
        assert client.get(path).json()["name"] == "quire-tiny"
        assert client.get(f"{path}/config").json()["backend"] == "quire"
        assert client.post(f"{path}/infer", json={"inputs": [tensor("text_input", ["a"])]}).json()
        assert client.post(f"{path}/generate", json={"text_input": "a"}).json()["model_name"]
    assert client.get("/v2/models/quire-tiny/versions/2").status_code == 404
    assert client.get("/v2/models/other/ready").status_code == 404
    assert client.get("/v2").json()["name"] == "quire"
    engine.dead = True
    for path in ("/v2/health/ready", "/v2/models/quire-tiny/ready"):
        assert client.get(path).status_code == 503
    assert client.get("/v2/health/live").status_code == 200
    for path in ("", "/versions/1"):
        assert scope_of(f"/v2/models/a/b{path}/infer") == "infer"
        assert {scope_of(f"/v2/models/a/b{path}{end}") for end in ("", "/ready")} == {"read"}
