"""Requests start with few adapters at once, the oldest first; no other request waits."""

from __future__ import annotations

from collections.abc import Callable, Set

import pytest

from quire.core.adapter_reference import AdapterReference
from quire.core.errors import FailureKind, RequestError, RequestFailure
from quire.engine.gates.adapter_gate import AdapterGate


class ScriptedAdapters:
    """Reads an adapter in as many steps as the test says, and keeps as many as there is room for.

    Attributes:
        steps: That each takes from now on; None for ever.
        failing: Content hashes that cannot be read.
        loads: All that were begun.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.steps: int | None = 1
        self.failing: set[str] = set()
        self.held: list[str] = []
        self.loads: list[str] = []
        self._coming: tuple[str, int | None] | None = None

    def is_ready(self, adapter: AdapterReference) -> bool:
        return adapter.content_hash in self.held

    def load(self, adapter: AdapterReference, kept: Set[str]) -> None:
        if self._coming is not None:
            return
        assert adapter.content_hash not in self.held and len(kept) <= self.room
        while len(self.held) >= self.room:
            self.held.remove(next(name for name in self.held if name not in kept))
        self.loads.append(adapter.content_hash)
        self._coming = adapter.content_hash, self.steps

    def collect(self) -> dict[str, RequestFailure]:
        if self._coming is None:
            return {}
        name, left = self._coming
        self._coming = name, None if left is None else left - 1
        if left is None or left > 0:
            return {}
        self._coming = None
        if name in self.failing:
            return {name: RequestFailure(FailureKind.ENGINE, f"[adapter] {name} is damaged.")}
        self.held.append(name)
        return {}

    def wait(self, seconds: float) -> None:
        pass


def adapter(name: str) -> AdapterReference:
    return AdapterReference(name, f"/adapters/{name}", name)


@pytest.fixture
def gated(start: Callable) -> Callable:
    """Return a function that makes a run with adapters."""

    def make(max_loras: int, room: int | None = None, **settings):
        run = start(**settings)
        adapters = ScriptedAdapters(room or max_loras)
        gate = run.engine._adapter_gate = AdapterGate(adapters, max_loras)
        run.engine.scheduler.gates.append(gate)
        return run, adapters

    return make


def running(run) -> list[str]:
    return [request.request_id for request in run.engine.scheduler.running]


def add(run, name: str, of: str | None, max_tokens: int = 4) -> None:
    own = None if of is None else adapter(of)
    run.add(name, [ord(name[0])] * 9, max_tokens=max_tokens, adapter=own)


def test_those_without_an_adapter_pass_one_that_waits(gated):
    run, adapters = gated(2)
    adapters.steps = None
    add(run, "cold", "a")
    for number in range(5):
        add(run, f"plain{number}", None)
    for _ in range(8):
        run.step()
    assert sorted(run.endings) == [(f"plain{number}", 0) for number in range(5)]
    stats = run.engine.stats()
    assert stats['num_requests_waiting_by_reason{reason="deferred"}'] == 1
    labels = 'max_lora="2",running_lora_adapters="",waiting_lora_adapters="a"'
    assert stats[f"lora_requests_info{{{labels}}}"] > 0
    adapters._coming, adapters.steps = ("a", 0), 0
    run.finish()
    assert run.endings["cold", 0] == "length"


def test_the_plan_names_the_adapter(gated):
    run, _ = gated(1)
    add(run, "x", "a"), add(run, "y", None)
    run.finish()
    named = {new.request_id: new.source.adapter for plan in run.plans for new in plan.new_requests}
    assert named == {"x": adapter("a"), "y": None}


@pytest.mark.parametrize("max_loras", [1, 2, 3])
def test_never_more_different_ones_than_allowed(gated, max_loras):
    run, _ = gated(max_loras)
    of = {f"{name}{number}": name for number in range(4) for name in "abcde"}
    for request_id, name in of.items():
        add(run, request_id, name)
    seen = set()
    while run.engine.has_unfinished_requests():
        run.step()
        now = {of[request_id] for request_id in running(run)}
        assert len(now) <= max_loras
        seen |= now
    assert seen == set("abcde") and set(run.endings.values()) == {"length"}


@pytest.mark.parametrize("max_loras", [1, 2])
def test_no_more_start_where_memory_holds_more_of_them(gated, max_loras):
    run, adapters = gated(max_loras, room=5)
    adapters.held = list("abcde")
    of = {f"{name}{number}": name for number in range(2) for name in "abcde"}
    for request_id, name in of.items():
        add(run, request_id, name)
    while run.engine.has_unfinished_requests():
        run.step()
        assert len({of[request_id] for request_id in running(run)}) <= max_loras
    assert set(run.endings.values()) == {"length"} and not adapters.loads


def test_the_oldest_without_a_place_is_not_overtaken(gated):
    run, _ = gated(1)
    add(run, "a1", "a", max_tokens=10)
    for _ in range(5):
        run.step()
    assert running(run) == ["a1"]
    add(run, "b1", "b")
    for _ in range(2):
        run.step()
    add(run, "a2", "a"), add(run, "plain", None)
    run.step()
    assert running(run) == ["a1", "plain"]
    run.finish()
    assert [name for name, _ in run.endings] == ["plain", "a1", "b1", "a2"]


def test_requests_of_one_adapter_share_its_place_and_its_memory(gated):
    run, adapters = gated(1)
    for number in range(6):
        add(run, f"a{number}", "a")
    run.finish()
    assert adapters.loads == ["a"]


def test_an_adapter_that_cannot_be_read_ends_its_requests_alone(gated):
    run, adapters = gated(2)
    adapters.failing = {"bad"}
    add(run, "x", "bad"), add(run, "y", "bad"), add(run, "z", "a")
    run.finish()
    assert run.endings == {("x", 0): "error", ("y", 0): "error", ("z", 0): "length"}
    told = {output.request_id: output.result.error for output in run.outputs}
    assert told["x"] == told["y"] == RequestFailure(FailureKind.ENGINE, "[adapter] bad is damaged.")


def test_abort_and_deadline_end_one_that_waits(gated):
    run, adapters = gated(2)
    adapters.steps = None
    add(run, "x", "a")
    run.add("y", [1] * 9, adapter=adapter("a"), deadline=3.0)
    run.step()
    run.abort("x")
    run.clock.advance(4)
    run.step()
    assert run.endings == {("x", 0): "abort", ("y", 0): "timeout"}
    assert not run.engine.has_unfinished_requests()


def test_preempted_requests_come_back_with_their_adapter(gated):
    run, _ = gated(2, num_blocks=14, block_size=4, looks_ahead=False)
    for number, name in enumerate("abcabc"):
        run.add(f"{name}{number}", [number] * 12, max_tokens=30, adapter=adapter(name))
    run.finish()
    assert run.engine.stats()["num_preemptions"] > 0
    assert set(run.endings.values()) == {"length"}


def test_an_engine_without_adapters_refuses_them(start):
    run = start()
    with pytest.raises(RequestError, match="an engine without --enable-lora has none"):
        add(run, "x", "a")
    assert not run.engine.has_unfinished_requests()
