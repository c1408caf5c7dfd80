"""How long a step may well take: by the best rate, and by the longest of the last ones."""

from __future__ import annotations

import pytest

from quire.llm.process.step_pace import OF_BEST_RATE, OF_LONGEST, WINDOW_SECONDS, StepPace


class Counters:
    """An engine's, as they come with its steps."""

    def __init__(self):
        self.values = {
            'step_seconds{stage="execute"}': 0.0,
            'step_seconds{stage="sample"}': 0.0,
            "num_steps": 0,
            "num_computed_tokens": 0,
            "iteration_tokens_total": [0.0, 1.0],
        }

    def step(self, seconds, tokens, count=1):
        self.values['step_seconds{stage="execute"}'] += seconds * 0.75
        self.values['step_seconds{stage="sample"}'] += seconds * 0.25
        self.values["num_steps"] += count
        self.values["num_computed_tokens"] += tokens
        return self.values


def test_it_follows_the_steps():
    # One look when it is made, one for each step.
    clock = iter([0.0] * 5 + [WINDOW_SECONDS + 1, 2 * WINDOW_SECONDS + 2])
    pace, counters = StepPace(2000, lambda: next(clock)), Counters()
    pace.observe(counters.values)
    assert not pace.is_known and pace.seconds == 0.0
    pace.observe(counters.step(0.1, 1))  # a decode: bound by memory, says little of a prefill
    assert pace.is_known and pace.seconds == pytest.approx(OF_BEST_RATE * 200)
    pace.observe(counters.step(1.0, 500))
    assert pace.seconds == pytest.approx(OF_BEST_RATE * 4)
    pace.observe(counters.step(1.0, 1000, count=10))
    assert pace.seconds == pytest.approx(OF_BEST_RATE * 2)
    pace.observe(counters.step(30.0, 2000))  # at a long context
    assert pace.seconds == pytest.approx(OF_LONGEST * 30)
    for _ in range(2):
        assert pace.seconds == pytest.approx(OF_LONGEST * 30)
        pace.observe(counters.step(0.1, 1))
    assert pace.seconds == pytest.approx(OF_BEST_RATE * 2), "forgotten"


def test_a_new_process_counts_from_nothing():
    pace = StepPace(1000)
    pace.observe(Counters().step(1.0, 1000))
    pace.restart()
    pace.observe(Counters().step(0.9, 1000))
    assert pace.seconds == pytest.approx(OF_BEST_RATE * 0.9)
