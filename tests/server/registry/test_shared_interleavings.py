"""Names that come, go and change their weights in every order; equal weights are one engine."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from quire.core.errors import CapacityError
from quire.server.http.http_errors import ApiError
from quire.server.registry.model_registry import ModelRegistry
from quire.server.registry.model_table import ModelEntry
from quire.settings.config import EngineConfig
from tests.server.registry.test_model_registry import Loads, registered
from tests.sizes import sized

NAMES, WEIGHTS = ("base", "poet", "tutor", "other"), ("a", "b", "c")


class ChangingNames:
    """What names stand for; see :class:`quire.server.registry.model_registry.FurtherModels`.

    Attributes:
        past: Of each name, all that it stood for: its weights and a version, None for nothing.
    """

    def __init__(self, sizes, keep_alive):
        self.sizes, self.keep_alive = sizes, keep_alive
        self.num_versions = 0
        self.past = {name: [None] for name in NAMES}

    def change(self, name, weights):
        self.num_versions += 1
        self.past[name].append(None if weights is None else (weights, self.num_versions))

    def list(self):
        return []

    def look_up(self, name):
        return None

    def find(self, name):
        now = self.past[name][-1]
        if now is None:
            return None
        weights, version = now
        config = EngineConfig.from_keywords(
            model=weights, served_model_name=name, override_generation_config={"top_k": version}
        )
        found = registered(ModelEntry(name, self.sizes[weights], self.keep_alive), config, weights)
        found.named = False
        found.is_current = lambda: self.past[name][-1] == now
        return found


def stands_for(service):
    """What a service was made for."""
    options = service.config.model
    return options.model, options.json_object("override_generation_config")["top_k"]


def check_integrity(models, loads):
    assert len(set(loads.alive)) == len(loads.alive), "weights that are in memory twice"
    engines = models._engines._engines
    for name, engine in engines.items():
        assert engine.entry.name == name
        assert models._models[name].engine is engine
    assert {id(model.engine) for model in models._models.values()} == set(map(id, engines.values()))


@pytest.mark.parametrize("seed", range(sized(10, 40)))
async def test_any_order_of_requests_and_changes_of_names(tokenizer, seed):
    """Each request is answered by something that its name stood for while it was asked."""
    rng = random.Random(seed)
    sizes = {weights: rng.choice((20, 40, 60, 90)) for weights in WEIGHTS}
    loads = Loads(tokenizer, sizes)
    names = ChangingNames(sizes, rng.choice((None, 0.0, 0.01)))
    later, answered = 0.0, 0

    def clock():
        return time.monotonic() + later

    models = ModelRegistry(loads.shared, 100, loads, 60.0, names, clock)

    async def request(name):
        nonlocal answered
        before = len(names.past[name]) - 1
        try:
            async with models.lease(name) as service:
                assert service.model_names == (name,)
                assert stands_for(service) in names.past[name][before:]
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(rng.choice((0, 0.001)))
                assert not service.engine.engine.stopped, "an engine in use is not unloaded"
                answered += 1
        except CapacityError as error:
            assert name in str(error), "who asks is told of the model that was asked for"
        except ApiError as error:
            assert error.status == 404 and None in names.past[name][before:], error

    async def unload(name):
        if names.past[name][-1] is not None:
            try:
                await models.unload(name)
            except ApiError as error:
                assert error.status == 404

    async def change(name):
        names.change(name, rng.choice((*WEIGHTS, None)))

    async def change_preset(name):
        now = names.past[name][-1]
        names.change(name, "a" if now is None else now[0])

    async def remove(name):
        await models.forget(name)
        names.change(name, None)

    async def break_or_mend(name):
        weights = rng.choice(WEIGHTS)
        (loads.broken.discard if weights in loads.broken else loads.broken.add)(weights)

    for name in NAMES[:3]:
        names.change(name, "a")
    tasks = []
    for _ in range(150):
        works = (request, unload, change, change_preset, remove, break_or_mend)
        work = rng.choices(works, (12, 1, 1, 1, 1, 0.2))[0]
        tasks.append(asyncio.create_task(work(rng.choice(NAMES))))
        if rng.random() < 0.1:
            rng.choice(tasks).cancel()
        if rng.random() < 0.4:
            await asyncio.sleep(rng.choice((0, 0, 0.001)))
            check_integrity(models, loads)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [e for e in ended if isinstance(e, Exception)]
    assert not wrong, wrong
    assert loads.most <= 100
    loads.broken.clear()
    later = 3600.0  # a load that failed is not tried again at once
    answered = 0  # all may have been refused: a machine that stands still makes one instant of all
    for name in NAMES:
        names.change(name, "a")
        await request(name)
    assert answered == len(NAMES), "whatever happened, all are there again"
    check_integrity(models, loads)
    for model in models._models.values():
        assert model.engine.entry.num_leases == model.engine.entry.num_waiting == 0
    await models.end_requests()
    assert loads.alive == []
    assert b"model_load_progress_perc{" not in loads.shared.metrics.exposition()[0]


async def test_a_preset_that_is_changed_or_removed_loads_nothing(tokenizer):
    loads = Loads(tokenizer, {"a": 60})
    names = ChangingNames({"a": 60}, None)
    models = ModelRegistry(loads.shared, 100, loads, 60.0, names)
    names.change("poet", "a")
    async with models.lease("poet") as first:
        names.change("poet", "a")
        async with models.lease("poet") as second:
            assert stands_for(first) < stands_for(second)
            assert first.engine.engine is second.engine.engine
            assert first.admission is second.admission, "one engine, one queue"
        names.change("base", "a")
        async with models.lease("base"):
            pass
        await models.forget("poet")
        names.change("poet", None)
        assert [known.names for known in models.known()] == [("base",)]
        assert not first.engine.engine.stopped, "what it has begun goes on"
    with pytest.raises(ApiError):
        async with models.lease("poet"):
            raise AssertionError("it is gone")
    assert loads.num_loads == 1 and loads.alive == ["a"]
    await models.forget("base")
    assert loads.alive == [], "the last name takes the weights along"
    await models.end_requests()


@pytest.mark.parametrize("weights", [None, "a", "b"])
async def test_requests_of_a_preset_that_is_changed_are_counted(tokenizer, weights):
    """Those under way were in no metric any more, though their engine goes on."""
    names = ChangingNames({"a": 50, "b": 50}, None)
    loads = Loads(tokenizer, names.sizes)
    models = ModelRegistry(loads.shared, 100, loads, 60.0, names)
    for name in ("base", "poet"):
        names.change(name, "a")
    metrics, name = models.shared.metrics, "poet"

    def count(service):
        service.metrics.e2e_latency.observe(1.0)

    def counted():
        lines = metrics.exposition()[0].decode().splitlines()
        begin = 'quire:e2e_request_latency_seconds_count{engine="0",model_name="poet"} '
        return [float(line.removeprefix(begin)) for line in lines if line.startswith(begin)]

    async with models.lease("base"), models.lease(name) as service:
        service.metrics.num_in_flight += 1
        names.change(name, weights)
        await models.forget(name)
        num_of_others = 0
        if weights is not None:
            async with models.lease(name) as other:
                assert other is not service
                count(other)
                num_of_others = 1
        assert metrics.num_in_flight == 1
        assert counted() == [num_of_others]
        count(service)
        assert counted() == [num_of_others + 1]
        service.metrics.num_in_flight -= 1
    # The one that was changed goes once no request has it any more.
    while len(metrics._models) > (1 if weights is None else 2):
        await asyncio.sleep(0.005)
    assert counted() == [num_of_others + 1]
    assert len(metrics._models) == (1 if weights is None else 2)
    await models.end_requests()
    assert counted() == [num_of_others + 1] and not metrics._models


async def test_a_refusal_names_the_model_that_was_asked_for(tokenizer):
    loads = Loads(tokenizer, {"a": 60, "b": 101})
    names = ChangingNames(loads.sizes, None)
    models = ModelRegistry(loads.shared, 100, loads, 60.0, names)
    for name, weights in (("base", "a"), ("poet", "a"), ("tutor", "b"), ("other", "b")):
        names.change(name, weights)
    loads.broken.add("a")
    for name, why in (
        ("base", "base cannot be loaded: .* is broken"),
        ("poet", "poet cannot be loaded: .* is broken"),
        ("tutor", "tutor needs 101 B"),
        ("other", "other has the engine of tutor: .* needs 101 B"),
    ):
        with pytest.raises(CapacityError, match=why):
            async with models.lease(name):
                raise AssertionError("it is not there")
    with pytest.raises(CapacityError, match="other has the engine of tutor: .* needs 101 B"):
        await models.load("other")
    await models.end_requests()


async def test_a_name_of_the_start_gets_the_files_that_it_stands_for_when_it_is_loaded(tokenizer):
    """Newer ones were pulled while it was not in memory; a preset goes on with those it has."""
    loads = Loads(tokenizer, {"a": 40, "b": 40})
    names = ChangingNames(loads.sizes, None)
    models = ModelRegistry(loads.shared, 100, loads, 60.0, names)
    names.change("base", "a")
    names.change("poet", "a")
    first = names.find("base")
    first.named, first.is_current, first.renew = True, lambda: True, lambda: names.find("base")
    models.add(first)
    for name in ("base", "poet"):
        async with models.lease(name):
            pass
    names.change("base", "b")
    async with models.lease(None):
        assert loads.alive == ["a"], "what is in memory stays"
    await models.unload("base")
    while loads.alive:
        await asyncio.sleep(0.005)
    for name, alive in ((None, ["b"]), ("poet", ["b", "a"])):
        async with models.lease(name) as service:
            assert loads.alive == alive and service.model_names == (name or "base",)
        check_integrity(models, loads)
    await models.end_requests()


async def test_texts_that_cannot_be_read_are_of_one_name_alone(tokenizer):
    """All that had the engine waited for it for ever: it stayed in the state loading."""
    loads = Loads(tokenizer, {"a": 50})
    made = []

    def load(config, loading):
        engine = loads(config, loading)
        made.append(engine)
        of_names = engine.view

        def view(options):
            if options.served_model_name == ("poet",):
                raise RecursionError("of its template")
            return of_names(options)

        engine.view = view
        return engine

    models = ModelRegistry(loads.shared, 100, load, 60.0)
    for name in ("base", "poet"):
        config = EngineConfig.from_keywords(model="a", served_model_name=name)
        models.add(registered(ModelEntry(name, 50), config, "a"))
    for _ in range(2):
        async with models.lease("base") as service:
            assert service.model_names == ("base",)
        with pytest.raises(CapacityError, match="poet cannot be loaded: see the log"):
            async with models.lease("poet"):
                pass
    await models.end_requests()
    assert len(made) == 1 and loads.alive == []
