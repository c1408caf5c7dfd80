"""Parts of long prompts that take as long as a few steps without one."""

from __future__ import annotations

import pytest

from quire.engine.scheduling.chunk_size import (
    COMPANY_SECONDS,
    LEAST_TOKENS,
    STEP_FACTOR,
    SURE_FACTOR,
    ChunkSize,
)


def settle(
    size: ChunkSize, seconds_of, now: float = 0.0, num_decodes: int = 1, most: int = 112
) -> int:
    """Run steps with a part until the size stays."""
    for _ in range(20):
        tokens = size.tokens(now, num_decodes, most)
        size.observe(seconds_of(tokens), tokens, True)
    return size.tokens(now, num_decodes, most)


def test_a_step_with_a_part_takes_a_few_times_as_long_as_others():
    size = ChunkSize()
    size.joined(0.0)
    assert settle(size, lambda tokens: 0.010 + 0.004 * tokens) == 112, "nothing to compare with"
    for _ in range(100):
        size.observe(0.030, 20, False)
    tokens = settle(size, lambda tokens: 0.010 + 0.002 * tokens)
    assert 0.010 + 0.002 * tokens == pytest.approx(STEP_FACTOR * 0.030, rel=0.05)
    size.is_sure = True
    assert size.tokens(0.0, 1, 112) == pytest.approx(tokens * SURE_FACTOR / STEP_FACTOR, rel=0.1)
    size.is_sure = False
    assert settle(size, lambda tokens: 0.010 + 1.0 * tokens) == LEAST_TOKENS
    assert settle(size, lambda tokens: 0.010 + 0.0001 * tokens) == 112, "and back"


def test_without_other_requests_parts_are_large():
    size = ChunkSize()
    size.observe(0.030, 20, False)
    assert settle(size, lambda tokens: 0.010 + 0.002 * tokens) == 112
    size.joined(5.0)
    assert size.tokens(5.1, 1, 112) < 112
    assert size.tokens(5.0 + COMPANY_SECONDS, 1, 112) == 112


@pytest.mark.parametrize("interval", [0.5, 2.0])
def test_without_decodes_a_part_loses_least_to_requests_that_arrive(interval):
    """Against the size that a search finds; a part is lost from its middle on, in the mean."""
    own, token_seconds = 0.010, 0.002
    size = ChunkSize()
    for number in range(200):
        size.joined(number * interval)
        size.observe(own, 1, False)
    now = 199 * interval
    tokens = settle(size, lambda tokens: own + token_seconds * tokens, now, num_decodes=0, most=500)

    def seconds_per_token(tokens: int) -> float:
        part = own + token_seconds * tokens
        return part / tokens * (1 + part / 2 / interval)

    best = min(range(LEAST_TOKENS, 500), key=seconds_per_token)
    assert seconds_per_token(tokens) <= 1.01 * seconds_per_token(best)
    size.is_sure = True
    assert size.tokens(now, 0, 500) == size.tokens(now, 1, 500) == LEAST_TOKENS, (
        "nothing is lost of it"
    )
