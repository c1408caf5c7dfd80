"""Which engine gets a request: hits, load, keys and lost engines; in virtual time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.dispatch import (
    POLICIES,
    Request,
    VirtualEngine,
    cost,
    serve,
    shared_prefixes,
    simulate,
)
from quire.llm.replicas.dispatcher import MOST_LOAD, Dispatcher, RequestLoad
from quire.llm.replicas.pools import PromptPools
from quire.llm.replicas.prefix_index import block_names
from tests.sizes import sized

BLOCK, STEP = 16, 512


def job(seed: int, num_tokens: int = 320, max_tokens: int = 8) -> RequestLoad:
    """A request whose prompt is the beginning of a long text, which ``seed`` names."""
    draw = random.Random(seed)
    prompt = [draw.randrange(1000) for _ in range(num_tokens)]
    return RequestLoad(block_names(prompt, BLOCK), num_tokens, max_tokens)


def create(count: int, num_blocks: int = 1000) -> Dispatcher:
    return Dispatcher(dict.fromkeys(range(count), num_blocks), BLOCK, STEP)


@pytest.mark.parametrize("count", [2, 8])
def test_prefixes_are_found_twice_as_often_as_by_chance_and_load_is_even(count: int) -> None:
    found = {
        policy: serve(shared_prefixes(count, 600 // count, 0.7), count, policy)
        for policy in POLICIES
    }
    assert found["prefix"].hit_rate >= 2 * found["random"].hit_rate
    assert found["prefix"].most_load <= MOST_LOAD
    assert found["prefix"].percentile(0.99) < found["random"].percentile(0.99)


def test_one_prefix_that_all_ask_for_does_not_overload_its_engine() -> None:
    dispatcher = create(4)
    made = [dispatcher.choose(job(1, max_tokens=200)) for _ in range(400)]
    assert all(made)
    loads = dispatcher.loads.values()
    mean = sum(loads) / 4
    assert max(loads) <= MOST_LOAD * mean + STEP
    for assignment in made:
        assert assignment is not None
        dispatcher.answered(assignment)
        dispatcher.ended(assignment, 200)
    assert set(dispatcher.loads.values()) == {0}


def test_a_long_prefix_is_computed_elsewhere_before_its_engine_has_too_much() -> None:
    """To compute it again costs far more than to wait; the others would do nothing meanwhile."""
    dispatcher, long = create(4, num_blocks=100_000), job(1, 8000, 400)
    homes = []
    for _ in range(160):
        assignment = dispatcher.choose(long)
        assert assignment is not None
        dispatcher.answered(assignment)
        homes.append(assignment.engine)
        loads = dispatcher.loads.values()
        assert max(loads) <= MOST_LOAD * (sum(loads) + 8000) / 4 + STEP, homes
    assert len(set(homes)) > 1, homes


def test_the_next_question_on_a_text_goes_where_the_text_is() -> None:
    dispatcher = create(3)
    homes = {}
    for seed in range(9):
        assignment = dispatcher.choose(job(seed))
        assert assignment is not None
        homes[seed] = assignment.engine
        dispatcher.ended(assignment, 8)
    assert sorted(homes.values()) == [0, 0, 0, 1, 1, 1, 2, 2, 2], "idle ones take turns"
    for seed, home in homes.items():
        assignment = dispatcher.choose(job(seed, 400))
        assert assignment is not None and assignment.engine == home
        assert assignment.prompt_tokens == 400 - 304, "its last token is computed in any case"
        dispatcher.ended(assignment, 8)


def test_what_an_engine_has_no_room_for_is_forgotten() -> None:
    dispatcher = create(1, num_blocks=30)
    for seed in (1, 2, 3):
        dispatcher.choose(job(seed))
    again = dispatcher.choose(job(3))
    assert again is not None and again.prompt_tokens == 320 - 304
    again = dispatcher.choose(job(1))
    assert again is not None and again.prompt_tokens == 320


def test_a_lost_engine_gets_nothing_until_it_serves_and_holds_nothing_then() -> None:
    dispatcher = create(2)
    first = dispatcher.choose(job(1))
    assert first is not None
    dispatcher.lost(first.engine)
    for seed in (1, 2, 3):
        other = dispatcher.choose(job(seed))
        assert other is not None and other.engine != first.engine
    dispatcher.lost(1 - first.engine)
    assert dispatcher.choose(job(1)) is None
    dispatcher.ended(first)
    dispatcher.found(first.engine)
    again = dispatcher.choose(job(1))
    assert again is not None and again.engine == first.engine and again.prompt_tokens == 320


def test_requests_that_would_not_fit_in_memory_go_to_others() -> None:
    dispatcher = create(2, num_blocks=100)
    homes = []
    for _ in range(6):
        assignment = dispatcher.choose(RequestLoad(job(1).names, 320, 1000))
        assert assignment is not None
        dispatcher.answered(assignment)
        homes.append(assignment.engine)
    assert set(homes) == {0, 1}


def test_keys_and_pictures_separate_prefixes() -> None:
    from quire.core.engine_request import RangeKey

    tokens = list(range(65))
    plain = block_names(tokens, BLOCK)
    assert len(plain) == 4 and plain == block_names(tokens[:-1] + [7], BLOCK)
    salted = block_names(tokens, BLOCK, ("salt:a",))
    pictured = block_names(tokens, BLOCK, (), (RangeKey(20, 25, "picture:x"),))
    assert not {*plain} & {*salted}
    assert plain[0] == pictured[0] and plain[1] != pictured[1] and plain[3] != pictured[3]
    assert block_names(tokens[:16], BLOCK) == [], "the last token is always computed"


def test_two_engines_serve_twice_the_requests() -> None:
    """Without any hits, as fast as they can."""

    def load(count: int) -> list[Request]:
        draw = random.Random(1)
        made = [
            Request(0.0, [draw.randrange(9999) for _ in range(256)], 16) for _ in range(200 * count)
        ]
        for request in made:
            request.names = block_names(request.prompt, BLOCK)
        return made

    seconds = {}
    for count in (1, 2, 4):
        dispatcher = create(count)
        engines = [VirtualEngine(1000) for _ in range(count)]
        outcome = simulate(
            load(count), engines,
            lambda r, d=dispatcher: d.choose(RequestLoad(r.names, len(r.prompt), 16)), dispatcher,
        )  # fmt: skip
        seconds[count] = outcome.seconds
    assert seconds[2] < 1.05 * seconds[1] and seconds[4] < 1.05 * seconds[1]


@pytest.mark.parametrize("is_lost", [False, True])
def test_short_prompts_do_not_wait_for_long_ones_that_have_engines_of_their_own(
    is_lost: bool,
) -> None:
    def load() -> list[Request]:
        draw, now, made = random.Random(2), 0.0, []
        for number in range(800):
            now += draw.expovariate(60)
            length = 8000 if number % 60 < 3 else 100  # one for each engine
            made.append(Request(now, [draw.randrange(9999) for _ in range(length)], 16))
            made[-1].names = block_names(made[-1].prompt, BLOCK)
        return made

    def create_pools() -> PromptPools:
        short, long = (Dispatcher(dict.fromkeys(own, 4000), BLOCK, STEP) for own in ((0, 1), (2,)))
        return PromptPools(short, long, 1000)

    seconds, homes = {}, set()
    for name, dispatcher in (("apart", create_pools()), ("together", create(3, 4000))):
        if is_lost:
            dispatcher.lost(2)

        def choose(r: Request, dispatcher: Any = dispatcher, name: str = name) -> Any:
            found = dispatcher.choose(RequestLoad(r.names, len(r.prompt), 16))
            if name == "apart":
                homes.add((len(r.prompt) > 1000, found.engine))
            return found

        engines = [VirtualEngine(4000) for _ in range(3)]
        seconds[name] = simulate(load(), engines, choose, dispatcher).percentile(0.99, 1000)
    if is_lost:
        assert homes <= {(False, 0), (False, 1), (True, 0), (True, 1)}
    else:
        assert homes == {(False, 0), (False, 1), (True, 2)}
        assert seconds["apart"] < seconds["together"] / 3


def test_a_request_costs_the_same_among_a_thousand_engines() -> None:
    few = min(cost(4, 1000)["choose"] for _ in range(5))
    many = min(cost(1000, 1000)["choose"] for _ in range(sized(2, 5)))
    assert many < 5 * few, "more engines than the processor's caches hold, not more work"
