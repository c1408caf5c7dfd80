"""The table of models: single rules, then every order of events that chance brings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import CapacityError, ModelLoadError
from quire.server.registry.model_table import (
    HOLDING,
    PATIENCE_SECONDS,
    RETRY_SECONDS,
    EntryResidence,
    LoadDecision,
    ModelEntry,
    ModelState,
    ModelTable,
)
from tests.sizes import sized


def table(budget=100, **sizes):
    """A table with unpinned models of these sizes."""
    made = ModelTable(budget)
    for name, size in sizes.items():
        made.add(ModelEntry(name, size))
    return made


def load(models, name, now=0.0):
    assert models.ask(name, now) is LoadDecision.LOAD
    models.loaded(name, now)


def lease(models, name, now=0.0):
    if models.entries[name].state is ModelState.ABSENT:
        load(models, name, now)
    assert models.ask(name, now) is LoadDecision.LEASED


def test_the_first_request_loads_and_the_others_wait():
    models = table(a=10)
    assert models.ask("a", 0) is LoadDecision.LOAD
    assert models.ask("a", 0) is LoadDecision.WAIT
    models.loaded("a", 1)
    assert models.ask("a", 2) is LoadDecision.LEASED


def test_what_fits_beside_others_disturbs_none():
    models = table(a=60, b=40)
    lease(models, "a")
    lease(models, "b")
    assert models.used_bytes == 100
    assert models.begin_unloads() == []


def test_the_least_recently_used_idle_model_goes():
    models = table(a=50, b=50, c=50)
    for now, name in enumerate("ab"):
        lease(models, name, now)
        models.release(name, now + 2)
    assert models.ask("c", 5) is LoadDecision.WAIT
    assert models.begin_unloads() == ["a"]
    assert models.begin_unloads() == []
    assert models.ask("c", 5) is LoadDecision.WAIT
    models.unloaded("a")
    assert models.ask("c", 6) is LoadDecision.LOAD


def test_a_busy_model_stays_for_a_while_and_then_takes_no_new_request():
    models = table(a=80, b=80)
    lease(models, "a")
    assert models.ask("b", 1) is LoadDecision.WAIT
    models.begin_wait("b")
    assert models.ask("a", 2) is LoadDecision.LEASED
    assert models.ask("b", 1 + PATIENCE_SECONDS) is LoadDecision.WAIT
    assert models.ask("a", 7) is LoadDecision.WAIT
    models.release("a", 7)
    assert models.begin_unloads() == []
    models.release("a", 8)
    assert models.begin_unloads() == ["a"]
    models.unloaded("a")
    assert models.ask("b", 8) is LoadDecision.LOAD


def test_who_waits_for_memory_longest_gets_it_first():
    models = table(a=80, b=80, c=20)
    lease(models, "a")
    assert models.ask("b", 1) is LoadDecision.WAIT
    models.begin_wait("b")
    assert models.ask("c", 2) is LoadDecision.WAIT, "it would fit, and b would wait for ever"
    models.end_wait("b")
    assert models.ask("c", 3) is LoadDecision.LOAD


def test_a_pinned_model_is_unloaded_for_no_other():
    models = table(b=80)
    models.add(ModelEntry("a", 80, pinned=True))
    load(models, "a")
    with pytest.raises(CapacityError, match=r"b needs 80 B of the 100 B .* 80 B are kept"):
        models.ask("b", 1)
    assert models.unload("a"), "who asks for it by name may have it go"
    assert models.begin_unloads() == ["a"]


def test_what_never_fits_is_refused_at_once():
    models = table(a=101)
    with pytest.raises(CapacityError, match="a needs 101 B"):
        models.ask("a", 0)


def test_a_failed_load_is_told_for_a_moment_and_then_tried_again():
    models = table(a=10)
    models.ask("a", 0)
    models.load_failed("a", ModelLoadError("broken"), 1)
    assert not models.used_bytes
    with pytest.raises(ModelLoadError, match="broken"):
        models.ask("a", 1)
    assert models.ask("a", 1 + RETRY_SECONDS) is LoadDecision.LOAD


def test_idle_models_go_when_their_time_is_over():
    models = ModelTable(100)
    models.add(ModelEntry("a", 10, keep_alive=5))
    models.add(ModelEntry("b", 10, keep_alive=None))
    lease(models, "a", 0)
    lease(models, "b", 0)
    models.release("b", 1)
    assert models.next_expiry() is None
    models.unload_idle(100)
    assert models.begin_unloads() == [], "it is in use"
    models.release("a", 100)
    assert models.next_expiry() == 105
    models.unload_idle(104.9)
    assert models.begin_unloads() == []
    models.unload_idle(105)
    assert models.begin_unloads() == ["a"]


def wish(models, name, seconds, now, *, by_operator=False):
    """Use a model for a moment, with a word of how long it is to stay."""
    assert models.ask(name, now) is LoadDecision.LEASED
    EntryResidence(models.entries[name], lambda: now).keep(seconds, by_operator=by_operator)
    models.release(name, now)


def test_a_wish_counts_where_no_other_request_has_a_longer_one():
    models = ModelTable(100)
    models.add(ModelEntry("a", 10, keep_alive=5))
    load(models, "a")
    wish(models, "a", 2, 10)
    assert models.next_expiry() == 12, "it was loaded for this one"
    wish(models, "a", 99, 10)
    assert models.next_expiry() == 15, "no longer than the server keeps it"
    wish(models, "a", 0, 11)
    assert models.next_expiry() == 15
    lease(models, "a", 12)
    wish(models, "a", 0, 12)
    models.release("a", 13)
    assert models.next_expiry() == 18, "one of the two did not say"


def test_what_an_operator_says_ends_with_the_unloading():
    models = ModelTable(100)
    models.add(ModelEntry("a", 10, keep_alive=5))
    load(models, "a")
    wish(models, "a", math.inf, 0, by_operator=True)
    assert models.next_expiry() is None
    wish(models, "a", 0, 1, by_operator=True)
    models.unload_idle(1)
    assert models.begin_unloads() == ["a"]
    models.unloaded("a")
    load(models, "a")
    lease(models, "a", 2)
    models.release("a", 3)
    assert models.next_expiry() == 8


def test_a_model_that_requests_wait_for_is_not_idle():
    models = ModelTable(100)
    models.add(ModelEntry("a", 10, keep_alive=0))
    models.begin_wait("a")
    load(models, "a")
    models.unload_idle(10)
    assert models.begin_unloads() == []
    assert models.ask("a", 10) is LoadDecision.LEASED


def test_unloading_twice_is_the_same_as_once():
    models = table(a=10)
    assert not models.unload("a")
    lease(models, "a")
    assert models.unload("a")
    assert models.unload("a")
    assert models.begin_unloads() == []
    models.release("a", 1)
    assert models.begin_unloads() == ["a"]
    assert models.unload("a")
    models.unloaded("a")
    assert not models.unload("a")
    assert models.ask("a", 2) is LoadDecision.LOAD


class World:
    """Requests, loads and unloads that end when chance says so."""

    def __init__(self, budget, sizes, pinned):
        self.models = ModelTable(budget)
        for index, size in enumerate(sizes):
            keep_alive = 3.0 if index % 2 else None
            self.models.add(ModelEntry(str(index), size, keep_alive, pinned=index < pinned))
        self.now = 0.0
        self.waiting, self.holding, self.loading, self.unloading = [], [], [], []
        self.refused = 0

    def ask(self, name):
        """Return whether the request goes on waiting."""
        try:
            answer = self.models.ask(name, self.now)
        except (CapacityError, ModelLoadError):
            self.refused += 1
            return False
        if answer is LoadDecision.LEASED:
            self.holding.append(name)
            return False
        if answer is LoadDecision.LOAD:
            assert name not in self.loading
            self.loading.append(name)
        return True

    def come(self, name):
        self.models.begin_wait(name)
        if self.ask(name):
            self.waiting.append(name)
        else:
            self.models.end_wait(name)

    def settle(self):
        """What a driver does after each change."""
        self.unloading += self.models.begin_unloads()
        for name in [*self.waiting]:
            if not self.ask(name):
                self.waiting.remove(name)
                self.models.end_wait(name)
        self.unloading += self.models.begin_unloads()
        self.check()

    def check(self):
        entries = self.models.entries.values()
        assert self.models.used_bytes <= self.models.budget_bytes
        for entry in entries:
            assert entry.num_leases == self.holding.count(entry.name)
            assert entry.num_waiting == self.waiting.count(entry.name)
            assert (entry.state is ModelState.LOADING) == (entry.name in self.loading)
            assert (entry.state is ModelState.UNLOADING) == (entry.name in self.unloading)
            assert not entry.num_leases or entry.state in (ModelState.READY, ModelState.DRAINING)
        assert len(set(self.unloading)) == len(self.unloading)
        assert sum(e.num_bytes for e in entries if e.state in HOLDING) == self.models.used_bytes

    def act(self, kind, number):
        lists = {"release": self.holding, "loaded": self.loading, "failed": self.loading}
        lists |= {"unloaded": self.unloading, "leave": self.waiting}
        if kind == "come":
            self.come(str(number % len(self.models.entries)))
        elif kind == "unload":
            self.models.unload(str(number % len(self.models.entries)))
        elif kind == "time":
            self.now += number / 2
            self.models.unload_idle(self.now)
        elif lists[kind]:
            name = lists[kind].pop(number % len(lists[kind]))
            if kind == "release":
                self.models.release(name, self.now)
            elif kind == "loaded":
                self.models.loaded(name, self.now)
            elif kind == "failed":
                self.models.load_failed(name, ModelLoadError("broken"), self.now)
            elif kind == "unloaded":
                self.models.unloaded(name)
            else:
                self.models.end_wait(name)
        self.settle()


ACTIONS = ["come", "come", "release", "loaded", "failed", "unloaded", "leave", "unload", "time"]


@settings(max_examples=sized(150, 400), deadline=None)
@given(
    st.lists(st.integers(10, 90), min_size=2, max_size=5),
    st.integers(0, 1),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 30)), max_size=120),
)
def test_any_order_of_events(sizes, pinned, actions):
    world = World(100, sizes, pinned)
    for kind, number in actions:
        world.act(kind, number)
    # Then loads and requests go on to their ends, and none waits for ever.
    for _ in range(300):
        for kind in ("loaded", "unloaded", "release"):
            world.act(kind, 0)
        world.act("time", 1)
        if not (world.waiting or world.holding or world.loading or world.unloading):
            break
    assert not world.waiting, (world.models.entries, world.waiting)
    assert not world.holding
