"""A server that loads models of the store on demand, while others change the store."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from quire.checkpoints.embedded import LISTED
from quire.server.app import create_app
from quire.server.generation.service import model_names
from quire.server.registry.model_registry import ModelRegistry
from quire.server.registry.model_table import ModelEntry
from quire.server.registry.stored_models import StoredModels
from quire.settings.config import EngineConfig
from quire.store.manifests import Preset
from quire.store.store import Store
from tests.server.registry.test_model_registry import Loads, registered
from tools.random_checkpoint import PRESETS, random_checkpoint

THEIRS = {"anthropic-version": "2023-06-01"}


class AnySize(dict):
    """Of every model 60 bytes."""

    def __missing__(self, name):
        return 60


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Empty but for what is in the package."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return Store()


@pytest.fixture
def random_model(tmp_path):
    """A folder with another model than the one in the package."""
    random_checkpoint(tmp_path / "random", PRESETS["tiny-llama"])
    return str(tmp_path / "random")


@pytest.fixture
async def server(store, tokenizer):
    """A client, and what was loaded; the model ``first`` was named at the start."""
    loads = Loads(tokenizer, AnySize())
    config = EngineConfig.from_keywords(model="org/first", served_model_name="first")

    def register(config):
        return registered(ModelEntry(model_names(config.model)[0], 60), config)

    further = StoredModels(EngineConfig(), register)
    models = ModelRegistry(loads.shared, 100, loads, 60.0, further)
    models.add(register(config))
    transport = httpx2.ASGITransport(app=create_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as made:
        yield made, loads
    await models.end_requests()
    assert loads.alive == []


async def names(client):
    """What each list shows; they show the same."""
    tags = (await client.get("/api/tags")).json()["models"]
    cards = (await client.get("/v1/models")).json()["data"]
    theirs = (await client.get("/v1/models?limit=1000", headers=THEIRS)).json()["data"]
    router = (await client.get("/models")).json()["data"]
    found = [[card["id"] for card in cards] for cards in (cards, theirs, router)]
    assert found[0] == found[1] == found[2] == [m["name"].removesuffix(":latest") for m in tags]
    return found[0]


async def ask(client, model):
    body = {"model": model, "prompt": "x", "stream": False}
    return await client.post("/api/generate", json=body)


async def test_the_store_is_listed_as_it_is_now(server, store, random_model):
    client, loads = server
    assert await names(client) == ["first", *LISTED]
    store.create("mine", "quire-tiny", Preset(system="Be brief.", sampling={"top_k": 3}))
    store.create("other", random_model, Preset())
    assert set(await names(client)) == {"first", *LISTED, "mine", "other"}
    store.remove("mine")
    assert set(await names(client)) == {"first", *LISTED, "other"}
    assert loads.num_loads == 0, "a look loads nothing"


async def test_what_cannot_be_loaded_is_not_listed_and_says_why(server, store, tmp_path):
    client, _ = server
    folder = tmp_path / "mamba"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    store.create("mamba", str(folder), Preset())
    assert "mamba" not in await names(client)
    store.create("gone", "quire-tiny", Preset())
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert "mamba" not in await names(client) and "gone" in await names(client)
    assert (await ask(client, "mamba")).status_code == 404


async def test_absent_models_are_told_of_like_loaded_ones(server, store):
    client, loads = server
    store.create("mine", "quire-tiny", Preset(system="Be brief.", sampling={"top_k": 3}))
    absent = (await client.get("/v1/models/mine")).json()
    assert absent["state"] == "absent" and absent["max_model_len"] > 100
    assert absent["created"] > 1.7e9 and {"completion", "tools"} <= set(absent["capabilities"])
    theirs = (await client.get("/v1/models/mine", headers=THEIRS)).json()
    assert theirs["max_input_tokens"] == absent["max_model_len"]
    assert theirs["capabilities"]["structured_outputs"] == {"supported": True}
    assert theirs["created_at"] > "2024"
    shown = (await client.post("/api/show", json={"model": "mine:latest"})).json()
    assert shown["system"] == "Be brief." and "top_k" in shown["parameters"]
    assert shown["details"]["parent_model"] == "quire-tiny" and "tools" in shown["template"]
    info = shown["model_info"]
    assert info["general.architecture"] == "llama" and info["general.parameter_count"] > 1000
    assert info["llama.context_length"] == absent["max_model_len"]
    assert info["llama.attention.head_count"] > 0 and info["llama.vocab_size"] > 0
    assert loads.num_loads == 0
    assert (await ask(client, "mine")).status_code == 200
    loaded = (await client.get("/v1/models/mine")).json()
    assert loaded["state"] == "ready" and loaded["created"] == absent["created"]
    tags = {m["name"]: m for m in (await client.get("/api/tags")).json()["models"]}
    (running,) = (await client.get("/api/ps")).json()["models"]
    assert running["digest"] == tags["mine:latest"]["digest"]


async def test_the_properties_of_an_absent_model_are_those_of_the_loaded_one(server):
    client, loads = server
    absent = (await client.get("/props?model=quire-tiny")).json()
    assert absent["is_sleeping"] and absent["model_alias"] == "quire-tiny"
    assert absent["default_generation_settings"]["n_ctx"] > 100
    assert absent["chat_template_caps"]["supports_tools"] and absent["eos_token"]
    assert (await client.get("/props?model=none")).status_code == 404
    assert loads.num_loads == 0


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_to_have_an_absent_model_go_loads_none(server, path):
    client, loads = server
    for name in ("quire-tiny", "first"):
        answer = (await client.post(path, json={"model": name, "keep_alive": 0})).json()
        assert (answer["done"], answer["done_reason"]) == (True, "unload"), answer
        assert answer.get("response", "") == "" and answer["model"] == name
    missing = await client.post(path, json={"model": "none", "keep_alive": 0})
    assert missing.status_code == 404 and missing.json()["error"] == "model 'none' not found"
    assert loads.num_loads == 0
    assert (await ask(client, "quire-tiny")).status_code == 200
    answer = (await client.post(path, json={"model": "quire-tiny", "keep_alive": "0s"})).json()
    assert answer["done_reason"] == "unload"
    while loads.alive:
        await asyncio.sleep(0.005)


async def test_a_model_that_others_remove_goes(server, store):
    client, loads = server
    store.create("mine", "quire-tiny", Preset())
    assert (await ask(client, "mine")).status_code == 200
    store.remove("mine")
    assert (await ask(client, "mine")).status_code == 404
    assert await names(client) == ["first", *LISTED]
    while loads.alive:
        await asyncio.sleep(0.005)


async def test_a_model_that_others_make_anew_is_loaded_anew(server, store, random_model):
    client, loads = server
    store.create("mine", "quire-tiny", Preset())
    for _ in range(2):
        assert (await ask(client, "mine")).status_code == 200
    store.create("mine", "quire-tiny", Preset())
    assert (await ask(client, "mine")).status_code == 200
    assert loads.num_loads == 1, "it is what it was"
    store.create("mine", random_model, Preset())
    answers = await asyncio.gather(*(ask(client, "mine") for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    assert loads.num_loads == 2 and loads.alive == ["mine"]


async def test_a_model_that_is_removed_while_it_loads_does_not_exist(server, store):
    """Its requests got a 503 that named the file of the server that was gone."""
    client, loads = server
    store.create("mine", "quire-tiny", Preset())
    loads.held["mine"] = True
    asking = [asyncio.create_task(ask(client, "mine")) for _ in range(2)]
    while not loads.num_loads:
        await asyncio.sleep(0.005)
    store.remove("mine")
    loads.broken.add("mine")
    loads.held["mine"] = False
    for answer in await asyncio.gather(*asking):
        assert (answer.status_code, answer.json()["error"]) == (404, "model 'mine' not found")


async def test_no_client_is_told_a_path_of_the_server(server, store, tmp_path, caplog):
    client, _ = server
    store.create("mine", "quire-tiny", Preset())
    (file,) = (tmp_path / "cache" / "store").glob("*.toml")
    file.write_text("format = 2")
    calls = [("GET", "/v1/models/mine", None), ("POST", "/api/show", {"model": "mine"})]
    calls += [("POST", "/api/generate", {"model": "mine", "prompt": "x"})]
    calls += [("POST", "/api/copy", {"source": "mine", "destination": "other"})]
    calls += [("POST", "/api/create", {"from": "mine", "model": "other"})]
    for method, path, body in calls:
        answer = await client.request(method, path, json=body)
        assert answer.status_code in (400, 503), answer.text
        assert "mine.toml must be a manifest" in answer.text, "the file's name is"
        assert str(tmp_path) not in answer.text, answer.text
        assert str(file) in caplog.text, "its folder is in the log"
        caplog.clear()
