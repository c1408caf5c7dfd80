"""Which blocks memory keeps: those used last."""

from __future__ import annotations

import numpy as np
import pytest

from quire.runner.blocks.tiers.ram_tier import RamTier


def key(number: int) -> bytes:
    return bytes([number]) * 32


def block(number: int) -> np.ndarray:
    return np.full(8, number, np.uint8)


@pytest.fixture
def full() -> RamTier:
    """A tier with room for three blocks, which has 1, 2 and 3."""
    tier = RamTier(3, 8)
    assert [tier.put(key(number), block(number)) for number in (1, 2, 3)] == [True] * 3
    return tier


def held(tier: RamTier) -> list[int]:
    return [number for number in range(10) if key(number) in tier]


def test_the_least_recently_put_makes_room(full: RamTier):
    assert full.put(key(4), block(4)) and held(full) == [2, 3, 4]
    assert not full.put(key(2), block(2)), "it was there"
    assert full.put(key(5), block(5)) and held(full) == [2, 4, 5]
    assert (full.num_blocks, full.nbytes) == (3, 24)


def test_one_that_is_read_stays_longer(full: RamTier):
    assert (full.get(key(1)) == 1).all()
    assert full.put(key(4), block(4)) and held(full) == [1, 3, 4]
    assert [int(full.get(key(number))[0]) for number in held(full)] == [1, 3, 4]
    with pytest.raises(KeyError):
        full.get(key(2))


def test_nothing_is_kept_without_room_and_nothing_is_left_after_clearing(full: RamTier):
    assert not RamTier(0, 8).put(key(1), block(1))
    full.clear()
    assert held(full) == [] and full.nbytes == 0
    assert all(full.put(key(number), block(number)) for number in (6, 7, 8))
    assert held(full) == [6, 7, 8]
