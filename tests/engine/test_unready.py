"""Requests whose grammars are at work sit steps out; the others go on, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire.core.structured_outputs import StructuredOutputs
from tests.engine.conftest import Run


def scheduled(run: Run) -> list[str]:
    return [row.request_id for row in run.plans[-1].scheduled]


def test_others_go_on(start: Callable[..., Run], unpaged: Callable[..., list[int]]) -> None:
    run = start()
    for name in "abc":
        run.add(name, [ord(name)] * 9, max_tokens=12)
    run.step()
    run.executor.at_work = frozenset("b")
    for _ in range(4):
        run.step()
        assert scheduled(run) == ["a", "c"]
    run.executor.at_work = frozenset()
    run.step()
    assert scheduled(run) == ["a", "b", "c"]
    run.finish()
    for name in "abc":
        request = next(r for p in run.plans for r in p.new_requests if r.request_id == name)
        expected = unpaged([ord(name)] * 9, request.params, request.seed, 12)
        assert run.tokens[name, 0] == expected


def test_when_all_are_at_work_a_step_waits_and_brings_nothing(
    start: Callable[..., Run],
) -> None:
    run = start()
    run.add("a", [1, 2, 3], max_tokens=5)
    run.step()
    run.executor.at_work = frozenset("a")
    num_plans = len(run.plans)
    assert run.step() == []
    assert len(run.plans) == num_plans and not run.executor.at_work  # it was waited for
    run.finish()
    assert len(run.tokens["a", 0]) == 5


def test_a_request_at_work_can_be_aborted_and_others_start(start: Callable[..., Run]) -> None:
    run = start()
    run.add("a", [1, 2, 3], max_tokens=5)
    run.step()
    run.executor.at_work = frozenset("a")
    run.add("b", [4, 5], max_tokens=3)
    run.step()
    assert scheduled(run) == ["b"]
    run.abort("a")
    run.finish()
    assert run.endings == {("a", 0): "abort", ("b", 0): "length"}


def test_one_at_work_is_preempted_like_any_other(start: Callable[..., Run]) -> None:
    run = start(num_blocks=10, block_size=4, looks_ahead=False)
    settings: dict[str, Any] = {"max_tokens": 24}
    run.add("old", [1] * 8, **settings)
    run.add("young", [2] * 8, **settings)
    run.step()
    run.executor.at_work = frozenset(["young"])
    while run.engine.scheduler.stats.num_preemptions == 0:
        run.step()
        assert "young" not in scheduled(run)
    run.executor.at_work = frozenset()
    run.finish()
    assert len(run.tokens["old", 0]) == len(run.tokens["young", 0]) == 24


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_resumed_request_draws_nothing_before_its_grammar_may_be_at_work(
    start: Callable[..., Run], unpaged: Callable[..., list[int]], block_size: int
) -> None:
    """It used to resume with a draw, for which the step waited until its mask was computed."""
    run = start(num_blocks=1 + 36 // block_size, block_size=block_size, looks_ahead=False)
    settings: dict[str, Any] = {
        "structured_outputs": StructuredOutputs(regex="x"),
        "ignore_eos": False,
    }
    for name in ("old", "young"):
        run.add(name, [ord(name[0])] * 8, max_tokens=24, **settings)
    requests = dict(run.engine.scheduler.requests)
    run.finish()
    num_resumed = 0
    for plan in run.plans:
        rows = {row.request_id: row for row in plan.scheduled}
        for new in plan.new_requests:
            if len(new.token_ids) > new.num_prompt_tokens:
                num_resumed += 1
                assert not rows[new.request_id].samples
    assert num_resumed
    for name, request in requests.items():
        expected = unpaged([ord(name[0])] * 8, request.params, request.seed, 24)
        assert run.tokens[name, 0] == expected


def test_a_request_resumes_with_all_but_one_token_cached(start: Callable[..., Run]) -> None:
    """Then one block is computed again, so that there is something else to compute."""
    run = start(block_size=4, takes_more=False)
    settings: dict[str, Any] = {
        "structured_outputs": StructuredOutputs(regex="x"),
        "ignore_eos": False,
    }
    run.add("a", [1] * 8, max_tokens=12, **settings)
    for _ in range(5):
        run.step()  # 13 tokens, 12 of them computed
    scheduler = run.engine.scheduler
    scheduler.sequences.preempt(scheduler.running.pop())
    run.step()
    (row,) = run.plans[-1].scheduled
    assert (row.num_computed_tokens, row.num_scheduled_tokens, row.samples) == (8, 4, False)
    run.finish()
    assert len(run.tokens["a", 0]) == 12
