"""Parts of long prompts that take as long as a few steps without one."""

from __future__ import annotations

import pytest

from quire.engine.chunk_size import (
    COMPANY_SECONDS,
    LEAST_TOKENS,
    STEP_FACTOR,
    SURE_FACTOR,
    ChunkSize,
)


def settle(size: ChunkSize, seconds_of, now: float = 0.0) -> int:
    """Run steps with a part until the size stays."""
    for _ in range(20):
        tokens = size.tokens(now)
        size.observe(seconds_of(tokens), tokens, True)
    return size.tokens(now)


def test_a_step_with_a_part_takes_a_few_times_as_long_as_others():
    size = ChunkSize(112)
    size.joined(0.0)
    assert settle(size, lambda tokens: 0.010 + 0.004 * tokens) == 112, "nothing to compare with"
    for _ in range(100):
        size.observe(0.030, 20, False)
    tokens = settle(size, lambda tokens: 0.010 + 0.002 * tokens)
    assert 0.010 + 0.002 * tokens == pytest.approx(STEP_FACTOR * 0.030, rel=0.05)
    size.is_sure = True
    assert size.tokens(0.0) == pytest.approx(tokens * SURE_FACTOR / STEP_FACTOR, rel=0.1)
    size.is_sure = False
    assert settle(size, lambda tokens: 0.010 + 1.0 * tokens) == LEAST_TOKENS
    assert settle(size, lambda tokens: 0.010 + 0.0001 * tokens) == 112, "and back"


def test_with_nobody_else_around_parts_are_large():
    size = ChunkSize(112)
    size.observe(0.030, 20, False)
    assert settle(size, lambda tokens: 0.010 + 0.002 * tokens) == 112
    size.joined(5.0)
    assert size.tokens(5.1) < 112
    assert size.tokens(5.0 + COMPANY_SECONDS) == 112
