"""Deadlines on a virtual clock: what is late ends, is not computed, and holds nothing."""

from __future__ import annotations

import random

from quire.engine.deadlines import Deadlines


def scheduled(run) -> list[set[str]]:
    """Return which sequences each step computed."""
    return [{row.request_id for row in plan.scheduled} for plan in run.plans]


def test_expired_in_the_queue_is_never_computed(start):
    run = start(max_num_seqs=1)
    run.add("first", [1], max_tokens=10)
    run.add("late", [2], max_tokens=10, deadline=3.0)
    run.add("patient", [3], max_tokens=2, deadline=1000.0)
    run.finish()
    assert run.endings == {("first", 0): "length", ("late", 0): "timeout", ("patient", 0): "length"}
    assert run.tokens["late", 0] == []
    assert not any("late" in step for step in scheduled(run))
    assert run.engine.stats()['request_success{finished_reason="timeout"}'] == 1


def test_expired_while_running_keeps_what_it_has(start):
    run = start()
    run.add("r", [1, 2], max_tokens=50, deadline=4.0)
    run.add("other", [3], max_tokens=50)
    run.finish()
    assert run.endings["r", 0] == "timeout"
    count = len(run.tokens["r", 0])
    assert 0 < count < 50
    assert len(run.tokens["other", 0]) == 50


def test_all_sequences_of_a_request_end_in_the_queue_or_forked(start):
    run = start(max_num_seqs=4)
    run.add("running", [1] * 20, max_tokens=50, n=4, temperature=1.0, deadline=5.0)
    run.add("waiting", [2] * 20, max_tokens=50, n=3, temperature=1.0, deadline=3.0)
    run.finish()
    assert set(run.endings.values()) == {"timeout"} and len(run.endings) == 7


def test_all_that_are_past_are_due_at_once():
    deadlines = Deadlines()
    for number in (3, 0, 4, 1, 2):
        deadlines.add(float(number), f"r{number}", 5, lambda _: True)
    assert list(deadlines.due(lambda: 2.0)) == [(0.0, "r0"), (1.0, "r1"), (2.0, "r2")]
    assert len(deadlines) == 2


def test_a_deadline_of_an_ended_request_does_not_touch_the_next_of_its_name(start):
    run = start()
    run.add("r", [1], max_tokens=1, deadline=5.0)
    run.finish()
    run.endings.clear()
    run.add("r", [1], max_tokens=20)
    run.finish()
    assert run.endings["r", 0] == "length"


def test_random_deadlines_end_each_request_once(start):
    rng = random.Random(5)
    run = start(num_blocks=60, max_num_seqs=6, max_num_batched_tokens=40)
    for i in range(80):
        deadline = rng.choice([None, rng.uniform(0, 120)])
        prompt = [rng.randrange(50)] * rng.randint(1, 40)
        run.add(
            f"r{i}",
            prompt,
            deadline=deadline,
            max_tokens=rng.randint(1, 30),
            n=rng.choice([1, 1, 3]),
            temperature=1.0,
        )
    run.finish()
    assert set(run.endings.values()) == {"length", "timeout"}


def test_far_deadlines_of_ended_requests_are_not_kept(start):
    """They were kept until they passed: a server whose clients allow an hour grew by the hour."""
    run = start()
    for i in range(400):
        run.add(f"r{i}", [1], max_tokens=1, deadline=1e9)
        run.finish()
    run.add("late", [2], max_tokens=50, deadline=run.clock() + 4.0)
    for i in range(400):
        run.add(f"s{i}", [1], max_tokens=1, deadline=1e9)
        run.engine.abort_request(f"s{i}")
    assert len(run.engine._deadlines) < 200
    run.finish()
    assert run.endings["late", 0] == "timeout"
