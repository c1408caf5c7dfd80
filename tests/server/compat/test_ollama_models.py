"""Ollama's routes on a server of several models, which are loaded when they are asked for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import httpx2
import pytest

from quire.server.access.authentication import ApiKey
from quire.server.app import create_app
from quire.server.registry.model_registry import ModelRegistry
from quire.server.registry.model_table import ModelEntry
from quire.settings.config import EngineConfig
from tests.server.registry.test_model_registry import Loads, registered


@pytest.fixture
def keys():
    """The server's, none but where a test has some."""
    return ()


@pytest.fixture
async def client(tokenizer, tmp_path, keys):
    """Of a server that knows the models ``big`` and ``Small:1b``, of which one fits at a time."""
    file = tmp_path / "small.Q4_K_M.gguf"
    file.write_bytes(b"GGUF" * 25)
    paths = {"big": "org/big", "Small:1b": str(file)}
    loads = Loads(tokenizer, dict.fromkeys(paths.values(), 60))
    loads.shared.keys = keys
    models = ModelRegistry(loads.shared, 100, loads, 60.0)
    for name, path in paths.items():
        config = EngineConfig.from_keywords(model=path, served_model_name=name)
        models.add(registered(ModelEntry(name, 60, keep_alive=300.0), config))
    transport = httpx2.ASGITransport(app=create_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as made:
        yield made
    await models.end_requests()
    assert loads.alive == []


async def test_all_models_are_listed_and_those_that_run(client):
    big, small = (await client.get("/api/tags")).json()["models"]
    assert (big["name"], small["name"]) == ("big:latest", "Small:1b")
    assert (big["size"], small["size"]) == (0, 100) and small["modified_at"] > "2020"
    assert small["details"]["format"] == "gguf" and small["details"]["families"] == []
    assert small["details"]["quantization_level"] == "Q4_K_M"
    assert big["digest"] != small["digest"]
    assert (await client.get("/api/ps")).json() == {"models": []}
    for name, tag in (
        ("Big:latest", "big:latest"),
        ("small:1B", "Small:1b"),
        ("big", "big:latest"),
    ):
        body = {"model": name, "prompt": "x", "stream": False}
        answer = await client.post("/api/generate", json=body)
        assert answer.json()["model"] == tag.removesuffix(":latest") and answer.json()["done"]
        running = (await client.get("/api/ps")).json()["models"]
        assert [model["name"] for model in running] == [tag]


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat", "/api/show", "/api/embed"])
async def test_a_name_of_no_model(client, path):
    answer = await client.post(path, json={"model": "Small"})
    assert (answer.status_code, answer.json()["error"]) == (404, "model 'Small' not found")
    assert (await client.get("/api/ps")).json() == {"models": []}


async def test_the_older_name_of_a_model_is_shown(client):
    answer = await client.post("/api/show", json={"name": "small:1b"})
    assert answer.json()["details"]["quantization_level"] == "Q4_K_M"


@pytest.mark.parametrize("keep_alive", [-1, "99999999h", 1e300])
async def test_a_model_that_stays_for_ages_is_listed(client, keep_alive):
    """The end of its time was beyond the calendar, and the list a 500 for all clients."""
    body = {"model": "big", "keep_alive": keep_alive}
    assert (await client.post("/api/generate", json=body)).status_code == 200
    (running,) = (await client.get("/api/ps")).json()["models"]
    assert running["expires_at"] == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("keys", [[ApiKey.create("user", ["infer", "read"]), ApiKey.create("op")]])
async def test_a_key_that_may_only_ask_unloads_nothing_and_pins_nothing(client):
    """Its ``keep_alive`` 0 made each later request of all clients load the model anew."""

    async def ask(keep_alive, key="user", **fields):
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": "big", "keep_alive": keep_alive, "stream": False, **fields}
        return await client.post("/api/generate", json=body, headers=headers)

    async def seconds():
        found = await client.get("/api/ps", headers={"authorization": "Bearer user"})
        if not found.json()["models"]:
            return None
        (running,) = found.json()["models"]
        end = datetime.fromisoformat(running["expires_at"].replace("Z", "+00:00"))
        return (end - datetime.now(UTC)).total_seconds()

    assert (await ask(None, prompt="x")).status_code == 200
    for wish in (0, "1s", -1, "9h"):
        assert (await ask(wish, prompt="x")).status_code == 200
        assert 200 < await seconds() <= 301
    refused = await ask(0)
    assert refused.status_code == 403 and "needs a key with the scope admin" in refused.text
    assert 200 < await seconds() <= 301
    assert (await ask("9h", "op")).status_code == 200
    assert await seconds() > 9 * 3500
    assert (await ask(0, "op")).json()["done_reason"] == "unload"
    while await seconds() is not None:
        await asyncio.sleep(0.01)
    assert (await ask(None, prompt="x")).status_code == 200
    assert 200 < await seconds() <= 301, "what was said ended with the unloading"


#: Those that take a model of a body, with what they need besides.
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/embeddings": {"input": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/invocations": {"prompt": "a"},
    "/generate": {"inputs": "a"},
    "/": {"inputs": "a"},
    "/generate_stream": {"inputs": "a"},
    "/api/generate": {"prompt": "a"},
    "/api/chat": {"messages": [{"role": "user", "content": "a"}]},
    "/api/embed": {"input": "a"},
    "/api/embeddings": {"prompt": "a"},
    "/api/show": {},
    "/completion": {"prompt": "a"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
    "/score": {"text_1": "a", "text_2": "b"},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/classify": {"input": "a"},
    "/pooling": {"input": "a"},
    "/models/load": {},
    "/models/unload": {},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_that_is_no_text_loads_none(client, path):
    """The default model was loaded, for seconds, and then the request refused."""
    for wrong in (1, [], {}, 1.5, True, ["big"]):
        answer = await client.post(path, json={"model": wrong, **BODIES[path]})
        assert answer.status_code == 400, (wrong, answer.text)
        assert "model" in answer.text
    assert (await client.get("/api/ps")).json() == {"models": []}
