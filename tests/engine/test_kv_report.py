"""Slot arithmetic, paged against static."""

from __future__ import annotations

import math
import random

import pytest

from quire.engine.kv_report import SlotUse, paged_slot_use, static_slot_use


def log_uniform(count: int) -> list[int]:
    rng = random.Random(1)
    return [round(math.exp(rng.uniform(math.log(20), math.log(2000)))) for _ in range(count)]


def test_static_example():
    """Three requests of 50, 100 and 300 tokens in 512 slots each."""
    use = static_slot_use([50, 100, 300], 512)
    assert (use.reserved, use.used, use.wasted) == (1536, 450, 1086)
    assert use.fragmentation == pytest.approx(0.707, abs=5e-4)


def test_paged_example():
    use = paged_slot_use([40, 70], 16)
    assert (use.reserved, use.used, use.wasted) == (8 * 16, 110, 18)


def test_utilization_of_the_log_uniform_workload():
    """At least 0.96 paged, at most 0.25 static."""
    lengths = log_uniform(5000)
    paged, static = paged_slot_use(lengths, 16), static_slot_use(lengths, 2048)
    assert 0.975 < paged.utilization < 0.99
    assert 0.18 < static.utilization <= 0.25
    assert paged.wasted <= 15 * len(lengths)


def test_static_reservation_is_proportional_to_the_limit():
    lengths = [100, 200]
    assert static_slot_use(lengths, 32768).reserved == 4 * static_slot_use(lengths, 8192).reserved


def test_nothing_reserved_wastes_nothing():
    assert SlotUse(0, 0).utilization == 1.0
    assert paged_slot_use([], 16) == static_slot_use([], 512) == SlotUse(0, 0)


def test_a_length_beyond_the_static_limit_is_our_own_mistake():
    with pytest.raises(AssertionError, match="length 600 exceeds max_len 512"):
        static_slot_use([600], 512)
