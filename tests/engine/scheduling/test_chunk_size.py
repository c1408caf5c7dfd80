"""Parts of long prompts that take as long as a few steps without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.engine.scheduling.chunk_size import (
    COMPANY_SECONDS,
    LEAST_TOKENS,
    STEP_FACTOR,
    SURE_FACTOR,
    ChunkSize,
)
from quire.planner.step_times import StepTimes


class Steps:
    """Steps whose seconds are known, and the size of the parts in them."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self.size = ChunkSize(self.times)

    def run(self, count: int, seconds: float, num_decodes: int, num_prompt_tokens: int = 0) -> None:
        """Run steps without a part."""
        for _ in range(count):
            self.times.observe(seconds, num_decodes, num_prompt_tokens)
            self.size.step_ended(False)

    def settle(
        self,
        seconds_of: Callable[[int], float],
        now: float = 0.0,
        num_decodes: int = 1,
        most: int = 112,
    ) -> int:
        """Run steps with a part until the size stays."""
        for _ in range(40):
            tokens = self.size.tokens(now, num_decodes, most)
            self.times.observe(seconds_of(tokens), num_decodes, tokens)
            self.size.step_ended(True)
        return self.size.tokens(now, num_decodes, most)


def test_a_step_with_a_part_takes_a_few_times_as_long_as_others() -> None:
    steps = Steps()
    steps.size.joined(0.0)
    assert steps.settle(lambda tokens: 0.030 + 0.004 * tokens) == 112, "nothing to compare with"
    steps.run(100, 0.030, 1)
    tokens = steps.settle(lambda tokens: 0.030 + 0.002 * tokens)
    assert 0.030 + 0.002 * tokens == pytest.approx(STEP_FACTOR * 0.030, rel=0.05)
    steps.size.is_sure = True
    expected = tokens * (SURE_FACTOR - 1) / (STEP_FACTOR - 1)
    assert steps.size.tokens(0.0, 1, 112) == pytest.approx(max(expected, LEAST_TOKENS), rel=0.1)
    steps.size.is_sure = False
    assert steps.settle(lambda tokens: 0.030 + 1.0 * tokens) == LEAST_TOKENS
    assert steps.settle(lambda tokens: 0.030 + 0.0001 * tokens) == 112, "and back"


def test_a_burst_of_short_prompts_is_no_long_step() -> None:
    """Parts are compared with steps of what decodes, whatever else those before them computed."""
    steps = Steps()
    steps.size.joined(0.0)
    steps.run(100, 0.030, 1)
    tokens = steps.settle(lambda tokens: 0.030 + 0.002 * tokens)
    steps.run(50, 0.030 + 0.002 * 100, 1, 100)
    assert steps.size.tokens(0.0, 1, 112) == pytest.approx(tokens, rel=0.1)


def test_without_other_requests_parts_are_large() -> None:
    steps = Steps()
    steps.run(1, 0.030, 1)
    assert steps.settle(lambda tokens: 0.030 + 0.002 * tokens) == 112
    steps.size.joined(5.0)
    assert steps.size.tokens(5.1, 1, 112) < 112
    assert steps.size.tokens(5.0 + COMPANY_SECONDS, 1, 112) == 112


@pytest.mark.parametrize("interval", [0.5, 2.0])
def test_where_no_request_decodes_a_part_loses_least_to_those_that_arrive(interval: float) -> None:
    """Against the size that a search finds; a part is lost from its middle on, in the mean."""
    own, token_seconds = 0.010, 0.002
    steps = Steps()
    for number in range(200):
        steps.size.joined(number * interval)
        steps.run(1, own, 1)
    now = 199 * interval
    tokens = steps.settle(lambda tokens: own + token_seconds * tokens, now, num_decodes=0, most=500)

    def seconds_per_token(tokens: int) -> float:
        part = own + token_seconds * tokens
        return part / tokens * (1 + part / 2 / interval)

    best = min(range(LEAST_TOKENS, 500), key=seconds_per_token)
    assert seconds_per_token(tokens) <= 1.01 * seconds_per_token(best)
    steps.size.is_sure = True
    assert steps.size.tokens(now, 0, 500) == steps.size.tokens(now, 1, 500) == LEAST_TOKENS, (
        "nothing is lost of it"
    )
