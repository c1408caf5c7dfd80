"""The registry on scripted engines: waiting, leaving, failing, unloading, in every order."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from starlette.requests import ClientDisconnect

from quire.core.errors import CapacityError, ModelLoadError
from quire.server.generation.shared import Shared
from quire.server.http.http_errors import ApiError
from quire.server.registry import model_table
from quire.server.registry.engines import RegisteredEngine
from quire.server.registry.model_registry import ModelRegistry, RegisteredModel
from quire.server.registry.model_table import ModelEntry, ModelTable
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import ScriptedEngine
from tests.sizes import sized


class Loads:
    """Loads scripted engines; keeps count.

    Attributes:
        held: Those that wait until they are let go, by name.
        broken: Names whose load fails.
        alive: Engines that were loaded and not shut down.
        most: Bytes that were in memory at once at most.
    """

    def __init__(self, tokenizer, sizes):
        self.tokenizer, self.sizes = tokenizer, sizes
        self.shared = Shared(ServerOptions(port=0))
        self.held, self.broken, self.alive, self.num_loads = {}, set(), [], 0
        self.most = 0

    def __call__(self, config, loading):
        name = config.model.model
        self.num_loads += 1
        if name in self.held:
            while self.held[name] and not loading.cancelled:
                time.sleep(0.001)
        if name in self.broken:
            raise ModelLoadError(f"[load] /srv/some/{name} is broken.")
        if loading.cancelled:
            raise ModelLoadError("[load] it is not wanted any more.")
        engine = ScriptedEngine(self.tokenizer)
        self.alive.append(name)
        self.most = max(self.most, sum(self.sizes[n] for n in self.alive))
        end = engine.shutdown

        async def shutdown():
            await asyncio.sleep(0)
            if name in self.alive and not engine.stopped:
                self.alive.remove(name)
            await end()

        engine.shutdown = shutdown
        return engine


def registered(entry, config, identity=None):
    """A model with an engine of its own, unless another one's has the same identity."""
    return RegisteredModel(config, RegisteredEngine(entry, config, identity))


@pytest.fixture
def registry(tokenizer):
    """Makes a registry of models with these sizes."""

    def make(budget, keep_alive=None, wait=60.0, **sizes):
        loads = Loads(tokenizer, sizes)
        models = [
            registered(
                ModelEntry(name, size, keep_alive),
                EngineConfig.from_keywords(model=name, served_model_name=name),
            )
            for name, size in sizes.items()
        ]
        made = ModelRegistry(loads.shared, budget, loads, wait)
        for model in models:
            made.add(model)
        return made, loads

    return make


async def name_of(registry, name):
    async with registry.lease(name) as service:
        await asyncio.sleep(0)
        return service.model_names[0]


async def test_many_requests_load_a_model_once(registry):
    models, loads = registry(100, a=50, b=50)
    names = await asyncio.gather(*(name_of(models, name) for name in "abab" * 20))
    assert names == list("abab" * 20)
    assert loads.num_loads == 2
    await models.end_requests()
    assert loads.alive == []


async def test_no_name_means_the_first_and_no_model_is_a_404(registry):
    models, _ = registry(100, a=50, b=50)
    assert await name_of(models, None) == "a"
    assert await name_of(models, "tgi") == "a"
    with pytest.raises(ApiError) as refused:
        await name_of(models, "c")
    assert refused.value.status == 404
    await models.end_requests()


async def test_a_load_that_takes_too_long_is_told_with_a_time(registry):
    models, loads = registry(100, wait=0.05, a=50)
    loads.held["a"] = True
    with pytest.raises(ApiError, match="a is not loaded yet") as refused:
        await name_of(models, "a")
    assert refused.value.status == 503 and int(refused.value.headers["Retry-After"]) > 0
    assert "Quire-Load-Progress" not in refused.value.headers, "nothing is known yet"
    models._models["a"].engine.loading.advance(30, 120)
    with pytest.raises(
        ApiError, match=r"a is not loaded yet \(25% of its weights are\)"
    ) as refused:
        await name_of(models, "a")
    assert refused.value.headers["Quire-Load-Progress"] == "0.25"
    loads.held["a"] = False
    while models.known()[0].state != "ready":
        await asyncio.sleep(0.005)
    assert await name_of(models, "a") == "a"
    assert loads.num_loads == 1, "the load that was begun goes on"
    await models.end_requests()


async def test_what_a_model_does_and_why_it_failed_is_told(registry):
    models, loads = registry(100, a=50)
    loads.held["a"] = True
    await models.load("a")
    while (known := models.known()[0]).state != "loading":
        await asyncio.sleep(0.005)
    assert known.loading is not None and known.num_waiting == 1 and not known.error
    loads.held["a"] = False
    # The one that waits is woken after the state has changed.
    while (known := models.known()[0]).state != "ready" or known.num_waiting:
        await asyncio.sleep(0.005)
    assert known.loading is None
    await models.end_requests()


async def test_a_load_that_cannot_fit_is_refused_when_it_is_asked_for(registry):
    """It was said to have begun, and no client was told that it could not."""
    models, loads = registry(100, a=101)
    with pytest.raises(CapacityError, match="a needs 101 B of the 100 B"):
        await models.load("a")
    assert loads.num_loads == 0
    await models.end_requests()


async def test_those_that_wait_do_not_keep_each_other_awake(registry, monkeypatch):
    """While a model loads the event loop belongs to the others."""
    models, loads = registry(100, a=50)
    loads.held["a"] = True
    num_asked, ask = 0, ModelTable.ask

    def counting(*arguments):
        nonlocal num_asked
        num_asked += 1
        return ask(*arguments)

    monkeypatch.setattr(ModelTable, "ask", counting)
    waiting = [asyncio.create_task(name_of(models, "a")) for _ in range(10)]
    await asyncio.sleep(0.3)
    assert num_asked <= 3 * len(waiting)
    loads.held["a"] = False
    assert await asyncio.gather(*waiting) == ["a"] * 10
    await models.end_requests()


async def test_what_was_named_at_the_start_is_not_forgotten(registry):
    models, loads = registry(100, a=50)
    with pytest.raises(ApiError, match="named when the server was started"):
        await models.forget("A:latest")
    assert await name_of(models, None) == "a"
    await models.forget("unknown")
    await models.end_requests()


async def test_metrics_of_a_server_without_a_loaded_model(registry):
    models, _ = registry(100, a=50)
    text, _ = models.shared.metrics.exposition()
    assert b"quire:host_cpu_usage_perc" in text


async def test_a_client_that_leaves_waits_no_longer(registry):
    models, loads = registry(100, a=50)
    loads.held["a"] = True
    gone = asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def ask():
        async with models.lease("a", receive):
            raise AssertionError("its client has left")

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.02)
    gone.set()
    with pytest.raises(ClientDisconnect):
        await asking
    loads.held["a"] = False
    assert await name_of(models, "a") == "a"
    await models.end_requests()


async def test_a_model_that_cannot_be_loaded_harms_no_other(registry, caplog, monkeypatch):
    """Clients were told in which folder of the server it lies, too."""
    monkeypatch.setattr(model_table, "RETRY_SECONDS", 60.0)
    models, loads = registry(100, a=50, b=50)
    loads.broken.add("a")
    with pytest.raises(CapacityError, match=r"a cannot be loaded: \[load\] a is broken"):
        await name_of(models, "a")
    with pytest.raises(CapacityError, match="broken"):
        await name_of(models, "a")
    assert loads.num_loads == 1, "not tried again for every request"
    assert "a cannot be loaded: [load] a is broken" in models.known()[0].error
    assert "a cannot be loaded: [load] /srv/some/a is broken" in caplog.text
    assert await name_of(models, "b") == "b"
    await models.end_requests()


async def test_idle_models_go_after_a_while(registry):
    models, loads = registry(100, keep_alive=0.05, a=50, b=50)
    async with models.lease("a"):
        assert await name_of(models, "b") == "b"
        while loads.alive != ["a"]:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert loads.alive == ["a"], "it is in use"
    while loads.alive:
        await asyncio.sleep(0.005)
    await models.end_requests()


async def test_draining_refuses_requests_and_gives_up_loads(registry):
    models, loads = registry(100, a=50, b=50)
    loads.held["b"] = True
    async with models.lease("a"):
        waiting = asyncio.create_task(name_of(models, "b"))
        await asyncio.sleep(0.02)
        models.drain()
        with pytest.raises(ApiError, match="shutting down"):
            await name_of(models, "a")
        with pytest.raises((ApiError, CapacityError)):
            await waiting
    await models.end_requests()
    assert loads.alive == []


@pytest.mark.parametrize("seed", range(sized(15, 40)))
async def test_any_order_of_requests_unloads_and_failures(registry, seed):
    """Each request is answered by the model that it named or refused; memory is never exceeded."""
    rng = random.Random(seed)
    sizes = {name: rng.choice((20, 40, 60, 90)) for name in "abcd"}
    models, loads = registry(100, keep_alive=rng.choice((None, 0.0, 0.01)), **sizes)
    answered, refused = 0, 0

    async def request(name):
        nonlocal answered, refused
        try:
            async with models.lease(name) as service:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(rng.choice((0, 0.001)))
                assert service.model_names[0] == name
                assert not service.engine.engine.stopped, "a model in use is not unloaded"
                answered += 1
        except CapacityError as error:
            assert "broken" in str(error)
            refused += 1

    async def unload(name):
        await models.unload(name)

    async def break_or_mend(name):
        (loads.broken.discard if name in loads.broken else loads.broken.add)(name)

    tasks = []
    for _ in range(120):
        work = rng.choices((request, unload, break_or_mend), (10, 2, 0.3))[0]
        tasks.append(asyncio.create_task(work(rng.choice("abcd"))))
        if rng.random() < 0.1:
            rng.choice(tasks).cancel()
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [e for e in ended if isinstance(e, Exception)]
    assert not wrong, wrong
    assert loads.most <= 100
    assert answered + refused > 0
    for model in models._models.values():
        assert model.engine.entry.num_leases == model.engine.entry.num_waiting == 0
    await models.end_requests()
    assert loads.alive == []
    assert b"model_load_progress_perc{" not in loads.shared.metrics.exposition()[0]
