"""Fair shares between clients: the bound, weights, priorities, and that tokens stay the same."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.core.client import SHARED, Client
from quire.engine.request import RequestStatus
from quire.engine.scheduling import fair_queue
from quire.engine.scheduling.fair_queue import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST, FairQueue
from quire.engine.scheduling.request_queue import AGEING_SECONDS
from tests.engine.requests import take_next, waiting_request
from tests.sizes import sized

A, B = Client("a"), Client("b")
MAX_SEQS, MAX_PROMPT, MAX_OUTPUT = 3, 60, 20
#: Twice the larger of a prompt's cost and that of all outputs which may be running (the paper's).
BOUND = 2 * max(PROMPT_TOKEN_COST * MAX_PROMPT, OUTPUT_TOKEN_COST * MAX_SEQS * MAX_OUTPUT)


def serve_backlog(start, counting, sizes, clients):
    """Run requests that all wait from the start; return each client's service after each step.

    ``sizes`` are (prompt, output) per request and client. It stops when a client's queue is empty.
    """
    run = start(
        num_blocks=400, executor_class=counting, max_num_seqs=MAX_SEQS,
        enable_prefix_caching=False, max_position_embeddings=100_000,
    )  # fmt: skip
    for number in range(max(map(len, sizes.values()))):
        for name, own in sizes.items():
            if number < len(own):
                prompt, output = own[number]
                run.add(f"{name}{number}", [1] * prompt, max_tokens=output, client=clients[name])
    served = Counter(dict.fromkeys(sizes, 0.0))
    left = Counter({name: len(own) for name, own in sizes.items()})
    history = []
    while run.engine.has_unfinished_requests():
        outputs = run.step()
        for new in run.plans[-1].new_requests:
            name = new.request_id[0]
            served[name] += PROMPT_TOKEN_COST * new.num_prompt_tokens
            left[name] -= 1
        for output in outputs:
            served[output.request_id[0]] += OUTPUT_TOKEN_COST * len(output.result.token_ids)
        if not all(left.values()):
            break
        history.append(dict(served))
    return history


kinds = st.lists(st.tuples(st.integers(1, MAX_PROMPT), st.integers(1, MAX_OUTPUT)), min_size=1)


# The fixture makes a fresh run at each call.
@settings(
    max_examples=sized(6, 25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32), kinds, kinds)
def test_backlogged_clients_are_served_alike_whatever_their_sizes(
    start, counting, seed, of_a, of_b
):
    rng = random.Random(seed)
    work = {"a": rng.choices(of_a, k=60), "b": rng.choices(of_b, k=60)}
    history = serve_backlog(start, counting, work, {"a": A, "b": B})
    assert all(abs(served["a"] - served["b"]) <= BOUND for served in history)


def test_without_clients_the_bound_breaks(start, counting):
    """The tests above would show this if the queue were not fair."""
    work = {"a": [(MAX_PROMPT, MAX_OUTPUT)] * 40, "b": [(1, 1)] * 40}
    one = serve_backlog(start, counting, work, {"a": SHARED, "b": SHARED})
    assert max(abs(served["a"] - served["b"]) for served in one) > 4 * BOUND
    two = serve_backlog(start, counting, work, {"a": A, "b": B})
    assert max(abs(served["a"] - served["b"]) for served in two) <= BOUND


@pytest.mark.parametrize("weight", [2.0, 5.0])
def test_weights_divide_the_service(start, counting, weight):
    work = {"a": [(20, 10)] * 150, "b": [(35, 5)] * 150}
    clients = {"a": Client("a", weight), "b": B}
    history = serve_backlog(start, counting, work, clients)
    assert all(abs(served["a"] / weight - served["b"]) <= BOUND for served in history)
    assert history[-1]["a"] / history[-1]["b"] == pytest.approx(weight, rel=0.2)


def test_a_greedy_client_does_not_hold_up_a_light_one(start, counting):
    run = start(executor_class=counting, max_num_seqs=2, enable_prefix_caching=False)
    for number in range(200):
        run.add(f"greedy{number}", [1] * 30, max_tokens=10, client=A)
    for _ in range(100):
        run.step()
    for number in range(3):
        begun = len(run.plans)
        run.add(f"light{number}", [1] * 5, max_tokens=4, client=B)
        while ("light" + str(number), 0) not in run.endings:
            run.step()
        started = [new.request_id for plan in run.plans[begun:] for new in plan.new_requests]
        assert started.index(f"light{number}") <= 1, "at most one other goes first"


def test_what_is_not_used_is_not_saved_up(start, counting):
    """A client that returns is served alike from now on, not compensated for its absence."""
    run = start(executor_class=counting, max_num_seqs=1, enable_prefix_caching=False)
    run.add("b-early", [1], max_tokens=1, client=B)
    for number in range(60):
        run.add(f"a{number}", [1] * 10, max_tokens=5, client=A)
    for _ in range(150):
        run.step()
    begun = len(run.plans)
    for number in range(40):
        run.add(f"b{number}", [1] * 10, max_tokens=5, client=B)
    for _ in range(100):
        run.step()
    counts = Counter(new.request_id[0] for p in run.plans[begun:] for new in p.new_requests)
    assert abs(counts["a"] - counts["b"]) <= 1


def test_tokens_do_not_depend_on_clients(start):
    rng = random.Random(3)
    requests = [
        (f"r{i}", [rng.randrange(1000) for _ in range(rng.randrange(1, 40))], rng.randrange(1, 12))
        for i in range(40)
    ]
    runs = []
    for clients in ([SHARED], [A, B, Client("c", 3.0)]):
        run = start(num_blocks=40, max_num_seqs=4, max_num_batched_tokens=24, block_size=4)
        for number, (name, prompt, output) in enumerate(requests):
            client = clients[number % len(clients)]
            run.add(name, prompt, max_tokens=output, temperature=1.0, client=client)
            run.step()
        run.finish()
        runs.append(run)
    alone, shared = runs
    assert alone.tokens == shared.tokens and alone.endings == shared.endings
    orders = [[n.request_id for p in run.plans for n in p.new_requests] for run in runs]
    assert orders[0] != orders[1], "or nothing was shown"


def test_preemption_under_many_clients(start):
    run = start(num_blocks=9, block_size=4, max_num_seqs=4, looks_ahead=False)
    for number in range(12):
        run.add(f"r{number}", [number] * 6, max_tokens=14, client=(A, B)[number % 2])
    run.finish()
    assert run.engine.stats()["num_preemptions"] > 0
    assert set(run.endings.values()) == {"length"} and len(run.endings) == 12


def test_priority_goes_before_fairness_and_low_ones_age():
    now = [0.0]
    queue = FairQueue(lambda: now[0])
    queue.push(waiting_request(0, A, priority=2))
    queue.push(waiting_request(1, B, priority=0))
    queue.charge(B, 1000)
    assert queue.peek().request_id == "r1", "better, though its client has had more"
    now[0] = 2 * AGEING_SECONDS
    queue.push(waiting_request(2, B, priority=0, time=now[0]))
    assert take_next(queue).request_id == "r0", "as good by now, and its client has had less"


def test_preempted_requests_are_paid_for():
    queue = FairQueue(lambda: 0.0)
    preempted = waiting_request(5, A)
    preempted.status = RequestStatus.PREEMPTED
    queue.push(preempted)
    queue.charge(A, 50)
    queue.push(waiting_request(1, B))
    queue.charge(A, 50)
    assert [take_next(queue).request_id for _ in range(2)] == ["r5", "r1"]


def test_counters_of_many_passing_clients_are_bounded(monkeypatch):
    monkeypatch.setattr(fair_queue, "MAX_IDLE_CLIENTS", 8)
    queue = FairQueue(lambda: 0.0)
    for number in range(100):
        one = waiting_request(number, Client(f"c{number}"))
        queue.push(one)
        assert take_next(queue) is one
        queue.charge(one.source.client, number)
        assert len(queue.served) <= 9
    queue.charge(Client("c0"), 1)  # forgotten, and still running
    assert queue.served["c0"] > 1


def test_time_that_passes_while_a_request_starts_does_not_change_who_starts(start):
    """The head was asked for twice: another one left the queue and the first started again."""
    run = start(scheduling_policy="priority", max_num_seqs=2)
    run.add("ahead", [1] * 8, max_tokens=3, client=A)
    run.add("ages", [2] * 8, max_tokens=3, client=B, priority=1)
    run.engine.scheduler.waiting.charge(A, 1000.0)  # so that B goes first at the same level
    run.clock.advance(AGEING_SECONDS - 1)
    allocate = run.kv.allocate_slots

    def allocate_slowly(*args, **settings):
        run.clock.advance(2)
        return allocate(*args, **settings)

    run.kv.allocate_slots = allocate_slowly
    run.step()
    started = [new.request_id for plan in run.plans for new in plan.new_requests]
    assert started == ["ahead", "ages"]
    assert not len(run.engine.scheduler.waiting)
    run.finish()
    assert run.endings == {("ahead", 0): "length", ("ages", 0): "length"}


def least(queue, waiting):
    """Look at every waiting request: what the queue must find without that."""
    heads = {}
    for request in sorted(waiting, key=lambda r: r.order):
        heads.setdefault(request.source.client.client_id, request)

    def rank(head):
        fresh = head.status is not RequestStatus.PREEMPTED
        served = queue.served[head.source.client.client_id] if fresh else 0.0
        return fresh, served, head.order

    return min(heads.values(), key=rank, default=None)


@settings(max_examples=sized(15, 100))
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_the_next_one_is_the_least_of_all(rng, num_clients):
    clients = [Client(f"c{i}", rng.choice([0.5, 1.0, 3.0])) for i in range(num_clients)]
    queue, waiting, away = FairQueue(lambda: 0.0), [], []
    for number in range(120):
        action = rng.random()
        if action < 0.45:
            request = waiting_request(number, rng.choice(clients), time=rng.random())
            waiting.append(request)
            queue.push(request)
        elif action < 0.6 and waiting:
            request = waiting.pop(rng.randrange(len(waiting)))
            queue.remove(request)
            away.append(request)
        elif action < 0.7 and away:  # preempted: back to its old place
            request = away.pop(rng.randrange(len(away)))
            request.status = RequestStatus.PREEMPTED
            waiting.append(request)
            queue.push(request)
        else:
            queue.charge(rng.choice(clients), rng.choice([1.0, 2.0, 7.0]))
        assert queue.peek() is least(queue, waiting)
        assert len(queue) == len(waiting)


def test_many_waiting_clients_cost_a_step_nothing():
    """A look at the queue used to be one at each client's."""
    queue = FairQueue(lambda: 0.0)
    for number in range(4096):
        queue.push(waiting_request(number, Client(f"c{number}")))
    rank, looked_at = queue._rank, []
    queue._ranks._key = lambda name: looked_at.append(name) or rank(name)
    for number in range(100):
        queue.charge(Client(f"c{number}"), 1.0)
        assert queue.peek().request_id == f"r{number + 1}"
    assert len(looked_at) <= 300


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_call_with_many_prompts_goes_before_all_that_come_after_it(start, policy):
    """1,024 prompts of one body stood before a neighbour's next request: it waited 11 s."""
    run = start(max_num_seqs=2, scheduling_policy=policy)
    for place in range(50):
        run.add(f"many{place}", [place], max_tokens=4, client=Client("", 1.0, place))
    for _ in range(6):
        run.step()
    run.add("one", [60], max_tokens=4)
    run.add("other", [61], max_tokens=4)
    run.finish()
    ended = [name for name, _ in run.endings]
    assert ended.index("one") < 10 and ended.index("other") < 12
    assert [name for name in ended if name.startswith("many")] == [f"many{i}" for i in range(50)]
