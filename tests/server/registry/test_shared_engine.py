"""A preset and its base in one server: one process and one set of weights, two sets of texts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from quire.store.manifests import Preset
from quire.store.store import Store
from tests.servers import start_server
from tests.sizes import sized

BASE = "quire-tiny"
#: A second engine would not fit: its process alone takes 160 MiB.
ON_DEMAND = ("--load-on-demand", "--memory", "256MiB", "--load-wait", "120")
LIMITS = ("--threads", "1", "--max-num-seqs", "8", "--max-model-len", "512")
TUTOR = Preset(system="You teach.", sampling={"max_tokens": 24, "temperature": 0.0})
SINGER = Preset(system="You sing, and you never stop.", sampling={"max_tokens": 5})
#: Another prompt by its template, another end by its sampling.
POET = Preset(
    template="{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
    sampling={"max_tokens": 17, "temperature": 0.8, "seed": 5},
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A store with presets of one base."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    store = Store()
    store.create("tutor", BASE, TUTOR)
    store.create("poet", "tutor", POET)
    return store


@pytest.fixture
def serve(cache, device):
    running = []

    def start(*arguments):
        running.append(start_server([*arguments, "--device", device, *LIMITS]))
        return running[-1]

    yield start
    for process in running:
        process.__exit__()


def ask(url, model, content="Tell me a story.", **fields):
    body = {"model": model, "messages": [{"role": "user", "content": content}], **fields}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=120)


def answer(reply):
    assert reply.status_code == 200, reply.text
    found = reply.json()
    choice, usage = found["choices"][0], found["usage"]
    return choice["message"]["content"], choice["finish_reason"], usage["prompt_tokens"]


def states(url):
    listed = httpx2.get(f"{url}/models").json()["data"]
    return {model["id"]: model["status"]["value"] for model in listed if model["id"] in NAMES}


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


NAMES = {BASE: {"max_tokens": 20, "temperature": 0}, "tutor": {}, "poet": {}}


def alone(serve, names=NAMES):
    """What each answers as the only model of a server."""
    found = {}
    for name in names:
        server = serve(name, "--memory", "96MiB")
        found[name] = answer(ask(server.wait_ready(), name, **NAMES[name]))
        assert server.end() == 0
    return found


def test_a_preset_and_its_base_have_one_engine(serve, cache):
    expected = alone(serve)
    assert len({found for found, _, _ in expected.values()}) == 3
    assert len({tokens for _, _, tokens in expected.values()}) == 3, "their prompts differ"
    server = serve(BASE, *ON_DEMAND)
    url = server.wait_ready()
    with ThreadPoolExecutor(12) as pool:
        names = [*NAMES] * sized(4, 8)
        asked = [(name, pool.submit(ask, url, name, **NAMES[name])) for name in names]
        for name, reply in asked:
            assert answer(reply.result()) == expected[name], name
    engine = server.engine()
    assert states(url) == dict.fromkeys(NAMES, "ready")
    models = httpx2.get(f"{url}/models").json()["data"]
    meta = {model["id"]: model["meta"] for model in models if model["id"] in NAMES}
    shared = {name: told["shares_weights_of"] for name, told in meta.items()}
    assert shared == {BASE: None, "tutor": BASE, "poet": BASE}
    assert len({told["weight_bytes"] for told in meta.values()}) == 1
    running = httpx2.get(f"{url}/api/ps").json()["models"]
    assert {model["name"] for model in running} == {f"{name}:latest" for name in NAMES}

    removed = httpx2.request("DELETE", f"{url}/api/delete", json={"model": "poet"})
    assert removed.status_code == 200 and ask(url, "poet").status_code == 404
    assert answer(ask(url, BASE, **NAMES[BASE])) == expected[BASE]
    cache.create("tutor", BASE, SINGER)
    changed = answer(ask(url, "tutor", temperature=0))
    assert changed[1:] != expected["tutor"][1:]
    assert server.engine() == engine, "nothing was loaded anew"

    engine.kill()
    wait_for(lambda: ask(url, BASE, **NAMES[BASE]).status_code == 200)
    assert answer(ask(url, BASE, **NAMES[BASE])) == expected[BASE]
    assert answer(ask(url, "tutor", temperature=0)) == changed
    assert len(server.engines()) == 1
    stopped = httpx2.post(f"{url}/models/unload", json={"model": BASE}).json()
    assert stopped["was_loaded"]
    wait_for(lambda: states(url) == {BASE: "absent", "tutor": "absent"})
    assert not server.engines()
    assert answer(ask(url, "tutor", temperature=0)) == changed
    assert server.end() == 0
    assert "Traceback" not in server.stderr


def test_both_at_the_start_are_loaded_once(serve):
    expected = alone(serve, ["tutor"])
    server = serve(BASE, "tutor", "--memory", "256MiB")
    url = server.wait_ready()
    assert answer(ask(url, "tutor")) == expected["tutor"]
    assert len(server.engines()) == 1 and states(url) == {BASE: "ready", "tutor": "ready"}
    assert server.end() == 0


def test_different_core_weights_are_different_engines(serve):
    server = serve(BASE, "tutor", "--memory", "512MiB", "--core-weight", "tutor=2")
    url = server.wait_ready()
    assert len(server.engines()) == 2 and states(url) == {BASE: "ready", "tutor": "ready"}
    assert server.end() == 0


def test_a_model_that_was_loaded_at_the_start_serves_its_presets(serve):
    server = serve("--memory", "96MiB")
    url = server.wait_ready()
    assert answer(ask(url, "tutor"))[1] == "length"
    assert len(server.engines()) == 1
    # What the engine counts is told once, what a name counts under it.
    tokens = [
        line.rpartition(" ")
        for line in httpx2.get(f"{url}/metrics").text.splitlines()
        if line.startswith("quire:generation_tokens_total{")
    ]
    assert [float(value) for _, _, value in tokens] == [24.0] and BASE in tokens[0][0]
    counted = httpx2.get(f"{url}/metrics").text
    assert 'quire:e2e_request_latency_seconds_count{engine="0",model_name="tutor"} 1.0' in counted
    assert httpx2.get(f"{url}/health/progress").json()["pending"] == 0
    assert server.end() == 0


async def test_what_an_engine_counts_is_told_once_whichever_name_goes(engine):
    """The names of a scripted engine whose requests are counted."""

    def told(views):
        stem = 'request_success{finished_reason="stop"}'
        return [view.stats().get(stem) for view in views]

    views = [engine.views.open(engine.tokenizer, {}) for _ in range(3)]
    engine.ended = ["finished"] * 3
    assert told(views) == [3, None, None]
    await views[1].shutdown()
    await views[0].shutdown()
    engine.ended += ["finished"] * 2
    assert told(views) == [3, None, 2], "a closed one tells what it told last"
    await views[2].shutdown()
    engine.ended += ["finished"] * 4
    again = engine.views.open(engine.tokenizer, {})
    assert told([*views, again]) == [3, None, 2, 4]
    assert not engine.stopped
