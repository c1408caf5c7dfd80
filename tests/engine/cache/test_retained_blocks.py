"""Requests that go on from the blocks of others: nothing is computed twice, and all come free."""

from __future__ import annotations

import random

import pytest

from quire.core.engine_request import Continuation, RangeKey
from quire.core.errors import RequestError


def one(run, request_id, tokens, *, continues=None, keeps_blocks=True, releases=(), **options):
    """Compute one token after ``tokens``, and keep the blocks."""
    continuation = Continuation(keeps_blocks, continues, releases)
    run.add(request_id, tokens, max_tokens=1, continuation=continuation, **options)


def ends(run, request_id):
    """Step until a request has ended; return its token."""
    while (request_id, 0) not in run.endings:
        run.step()
    return run.tokens[request_id, 0][0]


def expected(unpaged, tokens):
    params = type("Greedy", (), {"temperature": 0})
    return unpaged(tokens, params, 0, 1)[0]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("size", [7, 8, 9])
def test_only_the_new_token_is_computed(start, unpaged, size, caching):
    run = start(block_size=8, enable_prefix_caching=caching)
    prompt = list(range(size))
    one(run, "a", prompt)
    ends(run, "a")
    before = len(run.plans)
    branches = {f"b{token}": [*prompt, token] for token in (500, 501, 502)}
    for request_id, tokens in branches.items():
        one(run, request_id, tokens, continues="a", keeps_blocks=False)
    for request_id, tokens in branches.items():
        assert ends(run, request_id) == expected(unpaged, tokens)
    plans = run.plans[before:]
    assert sum(plan.num_scheduled_tokens for plan in plans) == len(branches)
    # A block that is not full is copied for each, for the kept one holds it, too.
    assert sum(len(plan.block_copies) for plan in plans) == (0 if size % 8 == 0 else 3)
    run.abort("a")
    run.finish()


def test_what_is_no_continuation_shares_nothing(start, unpaged):
    run = start(block_size=4, enable_prefix_caching=False)
    one(run, "a", [1, 2, 3, 4, 5, 6])
    ends(run, "a")
    for request_id, tokens, options in (
        ("other", [1, 2, 9, 4, 5, 6, 7], {}),
        ("short", [1, 2, 3], {}),
        ("salted", [1, 2, 3, 4, 5, 6, 7], {"extra_keys": ("salt:x",)}),
        ("pictured", [1, 2, 3, 4, 5, 6, 7], {"range_keys": (RangeKey(1, 3, "cat"),)}),
        ("whole", [1, 2, 3, 4, 5, 6, 7], {"prompt_logprobs": 0}),
        ("lost", [1, 2, 3, 4, 5, 6, 7], {"continues": "unknown"}),
    ):
        before = len(run.plans)
        one(run, request_id, tokens, **{"continues": "a", "keeps_blocks": False, **options})
        assert ends(run, request_id) == expected(unpaged, tokens)
        assert sum(plan.num_scheduled_tokens for plan in run.plans[before:]) == len(tokens)
    run.abort("a")
    run.finish()


def test_ids_of_kept_blocks_are_taken(start):
    run = start()
    one(run, "a", [1, 2, 3])
    ends(run, "a")
    with pytest.raises(RequestError, match="unique"):
        one(run, "a", [1, 2, 3])
    one(run, "b", [4], releases=("a", "unknown"), keeps_blocks=False)
    del run.endings["a", 0]  # the id is free again
    one(run, "a", [1, 2, 3], keeps_blocks=False)
    run.finish()


def test_an_aborted_request_keeps_nothing(start):
    run = start(block_size=4)
    one(run, "a", [1, 2, 3, 4, 5])
    ends(run, "a")
    one(run, "b", [1, 2, 3, 4, 5, 6], continues="a")
    run.abort("b")
    run.abort("a")
    run.finish()


def test_kept_blocks_are_given_up_for_others(start, unpaged):
    run = start(num_blocks=9, block_size=4, enable_prefix_caching=False)
    for number in range(3):
        one(run, f"kept{number}", [number] * 8)
        ends(run, f"kept{number}")
    assert run.kv.pool.num_free == 2
    one(run, "continued", [*[2] * 8, 5], continues="kept2")
    run.add("large", [7] * 28, max_tokens=3)
    run.step()
    while run.engine.has_unfinished_requests():
        run.step()
    assert run.endings["large", 0] == "length"
    assert run.tokens["continued", 0] == [expected(unpaged, [*[2] * 8, 5])]
    for request_id in ("kept0", "kept1", "kept2", "continued"):
        run.abort(request_id)
    run.finish()


@pytest.mark.parametrize("seed", range(6))
def test_trees_of_continuations_in_a_small_pool(start, unpaged, seed):
    """Tokens are those of a whole computation, whatever was given up meanwhile."""
    draw = random.Random(seed)
    run = start(
        num_blocks=draw.choice([14, 30]),
        block_size=4,
        max_num_seqs=4,
        looks_ahead=False,
        enable_prefix_caching=seed % 2 == 0,
    )
    known: dict[str, list[int]] = {}
    for number in range(40):
        parent = draw.choice([None, *known])
        tokens = [draw.randrange(9) for _ in range(draw.randint(1, 9))]
        if parent is not None:
            tokens = [*known[parent], draw.randrange(9)]
        if len(tokens) > 36:
            continue
        one(run, str(number), tokens, continues=parent, keeps_blocks=draw.random() < 0.8)
        known[str(number)] = tokens
        for _ in range(draw.randrange(3)):
            run.step()
        if draw.random() < 0.2:
            run.abort(str(draw.randrange(number + 1)))
    while run.engine.has_unfinished_requests():
        run.step()
    for request_id, tokens in known.items():
        if run.endings[request_id, 0] == "length":
            assert run.tokens[request_id, 0] == [expected(unpaged, tokens)]
        run.abort(request_id)
    run.finish()
