"""The calls that Open WebUI makes, as it writes them: to Ollama and to a server of OpenAI's shape.

Source: its routers ``ollama.py`` and ``openai.py`` and ``utils/payload.py``
(https://github.com/open-webui/open-webui).
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.clients.samples import MESSAGES, MODEL, TOOL

httpx = pytest.importorskip("httpx", reason="run scripts/test_clients")

TAGGED = f"{MODEL}:latest"
#: All that its chat settings can set, but for what is refused by name.
OPTIONS = {
    "temperature": 0, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "seed": 7, "stop": ["###"],
    "num_ctx": 2048, "num_batch": 512, "num_predict": 40, "repeat_last_n": -1,
    "repeat_penalty": 1.1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0,
    "mirostat_eta": 0.1, "mirostat_tau": 5.0, "num_gpu": 0, "num_thread": 2, "use_mmap": True,
    "use_mlock": False, "num_keep": 24,
}  # fmt: skip
FORWARDED = {
    "X-OpenWebUI-User-Name": "A%20B", "X-OpenWebUI-User-Id": "7", "X-OpenWebUI-Chat-Id": "c1",
    "X-OpenWebUI-User-Email": "a@example.org", "X-OpenWebUI-User-Role": "admin",
}  # fmt: skip


@pytest.fixture
def client(server_url, key):
    headers = {"Authorization": f"Bearer {key}", **FORWARDED}
    with httpx.Client(base_url=server_url, headers=headers, timeout=60) as made:
        yield made


def lines(answer):
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def chat(client, **fields):
    body = {"model": TAGGED, "messages": MESSAGES, "stream": True, "options": OPTIONS, **fields}
    return client.post("/api/chat", content=json.dumps(body))


def test_the_connection_is_checked_and_models_are_listed(client):
    version = client.get("/api/version").json()["version"]
    assert [int(part) for part in version.lstrip("v").partition("-")[0].split(".")]
    models = client.get("/api/tags").json()["models"]
    by_model = {model["model"]: model for model in models}  # it keys its table so
    assert by_model[TAGGED]["name"] == TAGGED and by_model[TAGGED]["size"] > 0
    assert by_model[TAGGED]["details"]["parameter_size"] and by_model[TAGGED]["digest"]
    assert lines(chat(client))[-1]["done"]
    loaded = {m["model"]: m["expires_at"] for m in client.get("/api/ps").json()["models"]}
    assert datetime.fromisoformat(loaded[TAGGED].replace("Z", "+00:00")).year > 2000
    shown = client.post("/api/show", json={"model": TAGGED, "name": TAGGED}).json()
    assert shown["model_info"] and shown["details"] and shown["modelfile"]


def test_a_chat_with_all_settings(client):
    answer = chat(client, keep_alive="5m", format=None)
    pieces = lines(answer)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert "".join(piece["message"]["content"] for piece in pieces)
    last = pieces[-1]
    assert last["done"] and last["total_duration"] > 0 and last["eval_count"] > 0
    named = answer.headers["x-ignored-params"]
    for name in ("num_ctx", "num_batch", "num_gpu", "num_thread", "use_mmap", "num_keep"):
        assert f"options.{name}" in named, "what does nothing is told"


def test_a_title_is_made_without_a_stream(client):
    body = {"model": TAGGED, "messages": MESSAGES, "stream": False, "options": {"num_predict": 20}}
    answer = client.post("/api/chat", content=json.dumps(body)).json()
    assert answer["done"] and answer["message"]["role"] == "assistant"


def test_tools_and_what_it_sends_of_earlier_calls(client):
    question = {"role": "user", "content": "What is the weather in Paris?"}
    pieces = lines(chat(client, messages=[question], tools=[TOOL]))
    (call,) = [call for piece in pieces for call in piece["message"].get("tool_calls", ())]
    assert call["function"]["arguments"] == {"city": "Paris"}
    earlier = {"index": 0, "id": None, "function": call["function"]}
    history = [
        question,
        {"role": "assistant", "content": "", "tool_calls": [earlier]},
        {"role": "tool", "content": "sunny", "tool_call_id": call["id"]},
    ]
    assert lines(chat(client, messages=history, tools=[TOOL]))[-1]["done"]


def test_a_schema_and_thinking_off(client):
    schema = TOOL["function"]["parameters"]
    pieces = lines(chat(client, format=schema, think=False))
    text = "".join(piece["message"]["content"] for piece in pieces)
    assert "city" in json.loads(text)


def test_vectors_of_documents(client):
    body = {"model": TAGGED, "input": ["one", "two"], "truncate": True}
    vectors = client.post("/api/embed", json=body).json()["embeddings"]
    one = client.post("/api/embeddings", json={"model": TAGGED, "prompt": "one"}).json()
    assert one["embedding"] == vectors[0] and len(vectors) == 2


def test_a_model_is_made_of_an_upload_used_ejected_and_deleted(client):
    """Also the route by which it uploads a GGUF file: the blob, then ``create``."""
    folder = Path(__file__).parents[2] / "quire" / "assets" / MODEL
    files = {}
    for path in folder.iterdir():
        if path.is_file():
            data = path.read_bytes()
            files[path.name] = f"sha256:{hashlib.sha256(data).hexdigest()}"
            stored = client.post(f"/api/blobs/{files[path.name]}", content=data)
            assert stored.status_code in (200, 201)
    steps = lines(client.post("/api/create", json={"model": "webui", "files": files}))
    assert steps[-1] == {"status": "success"}
    copied = client.post("/api/copy", json={"source": "webui", "destination": "webui-2"})
    assert copied.status_code == 200
    assert lines(chat(client, model="webui-2:latest"))[-1]["done"]
    eject = {"model": "webui-2:latest", "keep_alive": 0, "prompt": ""}
    assert client.post("/api/generate", json=eject).json()["done_reason"] == "unload"
    for name in ("webui", "webui-2"):
        body = json.dumps({"model": name, "name": name})
        assert client.request("DELETE", "/api/delete", content=body).status_code == 200
    assert client.post("/api/generate", json=eject).json()["error"]


def test_a_pull_that_cannot_be_had_and_a_push_are_told(client):
    answer = client.post("/api/pull", content=json.dumps({"model": "no model", "insecure": True}))
    assert answer.status_code == 400 and isinstance(answer.json()["error"], str)
    answer = client.post("/api/push", content=json.dumps({"model": TAGGED, "insecure": True}))
    assert answer.status_code == 501 and isinstance(answer.json()["error"], str)
    have = {"model": TAGGED, "insecure": True}
    assert lines(client.post("/api/pull", content=json.dumps(have)))[-1] == {"status": "success"}


def test_the_same_as_a_server_of_openais_shape(client):
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list" and MODEL in [model["id"] for model in listed["data"]]
    body = {
        "model": MODEL, "messages": MESSAGES, "stream": True, "temperature": 0, "top_p": 0.9,
        "min_p": 0.0, "max_tokens": 40, "frequency_penalty": 0, "presence_penalty": 0, "seed": 7,
        "stop": ["###"], "logit_bias": {"5": -1}, "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer = client.post("/v1/chat/completions", content=json.dumps(body), headers={
        "Content-Type": "application/json"
    })  # fmt: skip
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", answer.text
    chunks = [json.loads(event) for event in events[:-1]]
    assert any(chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    title = {"model": MODEL, "messages": MESSAGES, "stream": False, "max_completion_tokens": 20}
    assert client.post("/v1/chat/completions", json=title).json()["choices"][0]["message"]
    vectors = client.post("/v1/embeddings", json={"model": MODEL, "input": ["one", "two"]}).json()
    assert [item["index"] for item in vectors["data"]] == [0, 1]
