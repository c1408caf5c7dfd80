"""Shares of reserved slots."""

from __future__ import annotations

import pytest

from quire.engine.cache.kv_report import SlotUse


def test_static_example():
    """Three requests of 50, 100 and 300 tokens in 512 slots each."""
    use = SlotUse(3 * 512, 50 + 100 + 300)
    assert use.wasted == 1086
    assert use.fragmentation == pytest.approx(0.707, abs=5e-4)


def test_nothing_reserved_wastes_nothing():
    assert SlotUse(0, 0).utilization == 1.0
