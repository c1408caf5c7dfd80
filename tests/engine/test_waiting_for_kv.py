"""Requests that wait for their KV: no other request waits for them, and each way out of it."""

from __future__ import annotations

from quire.engine.request import RequestStatus


def held(run, request_id):
    """Hold a request and return it."""
    (request,) = run.engine.scheduler.sequences.group(request_id)
    run.engine.scheduler.hold(request)
    return request


def test_a_held_request_starts_when_it_is_released(start):
    expected = start()
    expected.add("a", [1] * 20, max_tokens=5)
    expected.finish()
    run = start()
    for name in "ab":
        run.add(name, [1] * 20, max_tokens=5)
    request = held(run, "a")
    assert request.status is RequestStatus.WAITING_FOR_KV
    stats = run.engine.stats()
    assert stats["num_requests_waiting"] == 2
    assert stats['num_requests_waiting_by_reason{reason="deferred"}'] == 1
    for _ in range(10):
        run.step()
    assert list(run.endings) == [("b", 0)] and ("a", 0) not in run.tokens
    run.engine.scheduler.release(request)
    run.finish()
    assert run.tokens["a", 0] == expected.tokens["a", 0]
    assert run.engine.stats()['num_requests_waiting_by_reason{reason="deferred"}'] == 0


def test_abort_and_deadline_end_a_held_request(start):
    run = start()
    run.add("a", [1] * 20, max_tokens=5)
    run.add("b", [1] * 20, max_tokens=5, deadline=3.0)
    held(run, "a"), held(run, "b")
    run.abort("a")
    run.clock.advance(4)
    run.step()
    assert run.endings == {("a", 0): "abort", ("b", 0): "timeout"}
    assert not run.engine.scheduler.held and not run.engine.has_unfinished_requests()


def test_a_preempted_request_may_wait_and_is_still_a_preempted_one(start):
    run = start(num_blocks=14, block_size=4, looks_ahead=False)
    for name in "abcd":
        run.add(name, [ord(name)] * 12, max_tokens=30)
    scheduler = run.engine.scheduler
    while not run.engine.stats()["num_preemptions"]:
        run.step()
    request = next(r for r in scheduler.requests.values() if r.status is RequestStatus.PREEMPTED)
    scheduler.hold(request)
    run.step()
    scheduler.release(request)
    assert request.status is RequestStatus.PREEMPTED
    run.finish()
    assert run.engine.stats()["prompt_tokens"] == 4 * 12, "started once each"


def test_its_owner_sleeps_while_all_are_held(start):
    """The loop used to spin: a held request counts as unfinished, and no step has work."""
    run = start()
    assert run.engine.seconds_until_work() is None
    run.add("a", [1] * 20, max_tokens=5, n=2)
    assert run.engine.seconds_until_work() == 0
    request = run.engine.scheduler.sequences.group("a")[0]  # its other sequence splits off later
    run.engine.scheduler.hold(request)
    assert run.engine.seconds_until_work() > 0 and run.step() == []
    run.engine.scheduler.release(request)
    assert run.engine.seconds_until_work() == 0
    run.finish()
