"""The pool: free ring order, references, content map."""

from __future__ import annotations

import random

import pytest

from quire.engine.cache.block_pool import BlockPool


def test_the_null_block_is_never_given_out():
    pool = BlockPool(6)
    assert pool.allocate(5) == [1, 2, 3, 4, 5]
    assert (pool.num_free, pool.num_used) == (0, 5)
    with pytest.raises(AssertionError, match="1 blocks of 0 free"):
        pool.allocate(1)


def test_a_block_is_free_when_its_last_holder_releases_it():
    pool = BlockPool(4)
    (block_id,) = pool.allocate(1)
    pool.hold([block_id])
    pool.release([block_id])
    assert block_id not in pool.free_block_ids()
    pool.release([block_id])
    assert block_id in pool.free_block_ids()
    with pytest.raises(AssertionError, match="ref_cnt 0"):
        pool.release([block_id])


def test_cached_blocks_are_evicted_least_recently_used_first():
    """Worthless blocks first, then cached ones in the order of their last use."""
    pool = BlockPool(5)
    pool.allocate(4)
    for block_id in (1, 2, 3):
        pool.remember(block_id, bytes([block_id]))
    pool.release([2, 1, 3, 4])
    assert pool.free_block_ids() == [4, 2, 1, 3]
    pool.hold([2])  # a hit
    pool.release([2])
    assert pool.free_block_ids() == [4, 1, 3, 2]
    assert pool.allocate(2) == [4, 1]
    assert pool.cached == {b"\2": 2, b"\3": 3}


def test_held_blocks_are_never_evicted():
    pool = BlockPool(4)
    held = pool.allocate(2)
    for block_id in held:
        pool.remember(block_id, bytes([block_id]))
    for _ in range(10):
        pool.release(pool.allocate(1))
    assert sorted(pool.cached.values()) == held


def test_first_block_of_equal_content_is_kept():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.remember(first, b"same")
    pool.remember(second, b"same")
    assert pool.cached == {b"same": first}
    pool.forget(second)
    assert pool.cached == {b"same": first}
    pool.forget(first)
    assert pool.cached == {}


def test_any_free_block_serves_any_request_after_churn():
    """At 95% occupancy the rest can be had in one piece, whatever its places."""
    pool, rng = BlockPool(1001), random.Random(0)
    held = pool.allocate(950)
    for _ in range(2000):
        rng.shuffle(held)
        count = rng.randint(1, 50)
        pool.release(held[:count])
        held[:count] = pool.allocate(count)
    rest = pool.allocate(pool.num_free)
    assert len(rest) == 50
    assert sorted(held + rest) == list(range(1, 1001))


def test_blocks_whose_content_is_forgotten_are_given_out_first():
    """Their memory is in use already; that of blocks never given out is not."""
    pool = BlockPool(6)
    pool.allocate(3)
    for block_id in (1, 2, 3):
        pool.remember(block_id, bytes([block_id]))
    pool.release([2, 1])
    assert pool.free_block_ids() == [4, 5, 2, 1]
    pool.forget_all()
    assert not pool.cached and sorted(pool.free_block_ids()[:2]) == [1, 2]
    assert pool.free_block_ids()[2:] == [4, 5] and pool.num_free == 4
    pool.release([3])
    assert pool.free_block_ids()[0] == 3
