"""``/v1/embeddings``, ``/load``, and llama-server's shape of ``/tokenize``."""

from __future__ import annotations

import base64
import math
import threading
from array import array

import openai
import pytest


def test_openai_s_client(live):
    answer = live.openai.embeddings.create(model="tiny", input=["one", "two words", "one"])
    assert [item.index for item in answer.data] == [0, 1, 2]
    first, second, third = (item.embedding for item in answer.data)
    assert first == third != second
    for vector in (first, second):
        assert math.fsum(x * x for x in vector) == pytest.approx(1, abs=1e-6)
    count = live.http.post("/tokenize", json={"prompt": "one"}).json()["count"]
    other = live.http.post("/tokenize", json={"prompt": "two words"}).json()["count"]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 2 * count + other
    plain = live.openai.embeddings.create(model="tiny", input="one", encoding_format="float")
    assert plain.data[0].embedding == first


def test_both_encodings_hold_the_same_bits(live):
    bodies = [{"input": "hello", "encoding_format": kind} for kind in ("float", "base64")]
    plain, packed = (live.http.post("/v1/embeddings", json=body).json() for body in bodies)
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert array("f", data).tolist() == plain["data"][0]["embedding"]
    assert plain["object"] == "list" and plain["data"][0]["object"] == "embedding"
    assert plain["id"].startswith("embd-") and plain["model"] == "tiny"


def test_token_ids_are_inputs_too(live):
    ids = live.http.post("/tokenize", json={"prompt": "abc"}).json()["tokens"]

    def embed(value: object) -> list[list[float]]:
        answer = live.http.post("/v1/embeddings", json={"input": value}).json()
        return [item["embedding"] for item in answer["data"]]

    assert embed(ids) == embed("abc") == embed(["abc"]) == embed([ids])
    assert embed([ids, ids[:2]])[0] == embed(ids)[0]


def test_neighbours_do_not_change_them(live):
    """Equal bits alone, in a batch, and with requests that generate."""
    alone = live.http.post("/v1/embeddings", json={"input": "the same"}).content
    expected = alone[alone.index(b'"data"') : alone.index(b'"usage"')]
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            body = {"prompt": ["x" * 50] * 4, "max_tokens": 30, "temperature": 1.0}
            live.http.post("/v1/completions", json=body)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert expected in live.http.post("/v1/embeddings", json={"input": "the same"}).content
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    live.wait_until_idle()


def test_what_cannot_be_is_refused(live):
    size = len(live.http.post("/v1/embeddings", json={"input": "a"}).json()["data"][0]["embedding"])
    accepted = live.http.post("/v1/embeddings", json={"input": "a", "dimensions": size})
    assert accepted.status_code == 200
    for body, param in (
        ({"input": "a", "dimensions": size - 1}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({}, "input"),
        ({"input": "a", "model": "other"}, "model"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": [10**9]}, "input"),
        ({"input": "a", "request_id": "a\n"}, "request_id"),
        ({"input": "a", "cache_salt": ""}, "cache_salt"),
        ({"input": "a", "priority": 10**30}, "priority"),
        ({"input": "a", "timeout": -1}, "timeout"),
    ):
        answer = live.http.post("/v1/embeddings", json=body)
        assert answer.status_code in (400, 404), body
        error = answer.json()["error"]
        assert error["param"] == param and "[prompt]" not in error["message"], answer.text
    with pytest.raises(openai.BadRequestError, match="context length"):
        live.openai.embeddings.create(model="tiny", input="a" * 40_000)


def test_load_counts_what_is_being_answered(client, engine):
    assert client.get("/load").json() == {"server_load": 0}
    engine.hold_after = 1
    with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as answer:
        parts = answer.iter_bytes()
        next(parts)
        assert client.get("/load").json() == {"server_load": 1}
        engine.released.set()
        assert [*parts]
    while client.get("/load").json() != {"server_load": 0}:
        pass


def test_llama_server_s_tokenize(client):
    ids = client.post("/tokenize", json={"prompt": "Grü", "add_special_tokens": False}).json()
    plain = client.post("/tokenize", json={"content": "Grü"}).json()
    assert plain == {"tokens": ids["tokens"]}
    pieces = client.post("/tokenize", json={"content": "Grü", "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == ids["tokens"]
    texts = [
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    ]
    assert b"".join(texts) == "Grü".encode()
    back = client.post("/detokenize", json={"tokens": ids["tokens"]}).json()
    assert back == {"prompt": "Grü", "content": "Grü"}
    for body in ({"content": "a", "prompt": "a"}, {}, {"content": "a", "parse_special": "x"}):
        assert client.post("/tokenize", json=body).status_code == 400
