"""The waiting queue: arrival order, priorities with ageing, removal anywhere."""

from __future__ import annotations

from quire.engine.request import Request
from quire.engine.scheduling.request_queue import AGEING_SECONDS, RequestQueue
from tests.engine.requests import take_next, waiting_request


def fcfs(number: int, priority: int = 0, time: float = 0.0) -> Request:
    return waiting_request(number, policy="fcfs", priority=priority, time=time)


def drain(queue: RequestQueue) -> list[str]:
    return [take_next(queue).request_id for _ in range(len(queue))]


def test_fcfs_ignores_priority():
    queue = RequestQueue()
    for number, priority in enumerate([5, 0, -5]):
        queue.push(fcfs(number, priority, time=100.0 - number))
    assert drain(queue) == ["r0", "r1", "r2"]


def test_a_preempted_request_returns_to_the_front():
    queue = RequestQueue()
    requests = [fcfs(number) for number in range(4)]
    for one in requests[:3]:
        queue.push(one)
    assert take_next(queue) is requests[0]
    queue.push(requests[3])
    queue.push(requests[0])
    assert drain(queue) == ["r0", "r1", "r2", "r3"]


def test_high_priority_overtakes_and_low_is_not_starved():
    """A stream of better requests passes one of priority 3 for 30 seconds, no longer."""
    queue = RequestQueue()
    queue.push(waiting_request(0, priority=3))
    for number in range(1, 101):
        queue.push(waiting_request(number, time=float(number)))
    order = drain(queue)
    assert order.index("r0") == 3 * AGEING_SECONDS - 1


def test_removal_anywhere():
    queue = RequestQueue()
    requests = [fcfs(number) for number in range(5)]
    for one in requests:
        queue.push(one)
    for one in (requests[0], requests[2], requests[4]):
        queue.remove(one)
        assert one not in queue
    assert len(queue) == 2
    assert drain(queue) == ["r1", "r3"]
    assert queue.peek() is None


def test_an_id_may_be_used_again_after_removal():
    queue = RequestQueue()
    first, second = fcfs(0), fcfs(1)
    second.request_id = first.request_id
    queue.push(first)
    queue.remove(first)
    queue.push(second)
    assert first not in queue
    assert take_next(queue) is second
