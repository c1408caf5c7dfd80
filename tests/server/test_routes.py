"""The small routes: models, health, version, tokenization; and who may call them."""

from __future__ import annotations

import pytest

import quire
from quire.settings.config import EngineConfig, ModelOptions

HI = {"role": "user", "content": "Hi"}


def test_models(client):
    (card,) = client.get("/v1/models").json()["data"]
    assert card["id"] == card["root"] == "quire-tiny"
    assert (card["object"], card["owned_by"]) == ("model", "quire")
    assert (card["parent"], card["max_model_len"], card["permission"]) == (None, 256, [])
    assert client.get("/v1/models/quire-tiny").json() == card
    response = client.get("/v1/models/other")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "The model `other` does not exist."


def test_served_names_may_hold_slashes(serve):
    options = ModelOptions(model="/some/where", served_model_name=("org/name",))
    client = serve(EngineConfig(model=options))
    card = client.get("/v1/models/org/name").json()
    assert (card["id"], card["root"]) == ("org/name", "/some/where")
    for name, status in (("org/name", 200), ("", 200), (None, 200), ("/some/where", 404)):
        body = {"prompt": "a", "model": name}
        assert client.post("/v1/completions", json=body).status_code == status


def test_a_path_is_served_under_its_last_part(serve, tmp_path):
    """Clients had to know the folders of the server's machine; its path is understood still."""
    path = tmp_path / "Small-Q8_0.gguf"
    path.write_bytes(b"GGUF")
    client = serve(EngineConfig(model=ModelOptions(model=str(path))))
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["Small-Q8_0"]
    for name, status in (("Small-Q8_0", 200), (str(path), 200), ("Small-Q8_0.gguf", 404)):
        answer = client.post("/v1/completions", json={"prompt": "a", "model": name})
        assert answer.status_code == status
        assert status != 200 or answer.json()["model"] == "Small-Q8_0"


def test_health_follows_the_engine(client, engine):
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        engine.dead = False
        response = client.request(method, path)
        assert (response.status_code, response.content) == (200, b"")
        engine.dead = True
        response = client.request(method, path)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "ServiceUnavailableError"


def test_version(client):
    assert client.get("/version").json() == {"version": quire.__version__}


def test_tokenize_and_back(client):
    body = {"prompt": "Grüße", "return_token_strs": True}
    answer = client.post("/tokenize", json=body).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) == 7
    assert answer["max_model_len"] == 256
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {
        "prompt": "Grüße", "content": "Grüße"
    }  # fmt: skip


def test_tokenize_messages(client):
    messages = [{"role": "user", "content": "Hi"}]
    for fields, end in (
        ({}, "<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "Hi<|im_end|>\n"),
        ({"continue_final_message": True}, "Hi"),
    ):
        answer = client.post("/tokenize", json={"messages": messages, **fields}).json()
        text = client.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
        assert text.startswith("<|im_start|>user\nHi") and text.endswith(end)
        assert answer["token_strs"] is None


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"max_tokens": -1}, ""),
        ({"messages": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]}, ""),
        ({"messages": [HI, {"role": "assistant", "content": "It", "prefix": True}]}, "It"),
        ({"messages": [HI, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "output_text", "text": "So."},
        ]}, HI]}, ""),
    ],
)  # fmt: skip
def test_what_other_servers_take_was_refused(client, engine, fields, end):
    """LM Studio's limit, parts of OpenAI's responses and Mistral's thoughts were a 400."""
    answer = client.post("/v1/chat/completions", json={"messages": [HI], **fields})
    assert answer.status_code == 200 and "x-ignored-params" not in answer.headers
    prompt = engine.tokenizer.decode(engine.requests[-1].prompt_token_ids, False)
    assert prompt.endswith(f"<|im_start|>assistant\n{end}")


def test_long_texts_are_tokenized_beside_the_loop(client):
    text = "wörd " * 5000
    tokens = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == text


def test_a_model_without_a_template_refuses_chat(client, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "chat template" in response.json()["error"]["message"]


GUARDED = [
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/load"),
    ("GET", "/debug/kv_cache"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/debug/kv_cache"),
    ("GET", "/nothing"),
    ("GET", "//v1/models"),
]


@pytest.mark.parametrize("root_path", ["", "/proxy"])
def test_a_key_guards_all_but_probes(serve, engine, root_path):
    client = serve(api_key="secret", root_path=root_path)
    for method, path in GUARDED:
        for key in (None, "", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer secré"):
            headers = {} if key is None else {b"authorization": key.encode()}
            response = client.request(method, path, headers=headers)
            assert response.status_code == 401, (method, path, key)
            assert response.json()["error"]["type"] == "AuthenticationError"
            assert response.headers["www-authenticate"] == "Bearer"
    assert engine.params == []
    headers = {"authorization": "Bearer secret"}
    assert client.get("/v1/models", headers=headers).status_code == 200
    for path in ("/health", "/health/live", "/health/ready", "/health/progress", "/ping"):
        assert client.get(path).status_code == 200
