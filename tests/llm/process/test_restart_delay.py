"""How long an engine's process is waited with: longer and longer, but for one that can serve."""

from __future__ import annotations

from quire.llm.process.restart_delay import (
    FIRST_SECONDS,
    MOST_SECONDS,
    MOST_SERVED_SECONDS,
    STABLE_SECONDS,
    RestartDelay,
)


def test_one_that_cannot_load_is_tried_less_and_less_often():
    delay = RestartDelay()
    waits = [delay.after(1.0, has_served=False) for _ in range(8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, MOST_SECONDS, MOST_SECONDS]


def test_one_that_has_served_is_back_soon_however_often_it_is_killed():
    delay = RestartDelay()
    waits = [delay.after(1.0, has_served=True) for _ in range(50)]
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(waits) == MOST_SERVED_SECONDS


def test_a_process_that_served_between_those_that_could_not_load_is_back_soon():
    delay = RestartDelay()
    for _ in range(10):
        delay.after(1.0, has_served=False)
    assert delay.after(1.0, has_served=True) == MOST_SERVED_SECONDS
    assert delay.after(1.0, has_served=False) == MOST_SECONDS


def test_after_a_long_time_the_first_restart_is_prompt():
    delay = RestartDelay()
    for _ in range(10):
        delay.after(1.0, has_served=True)
    assert delay.after(STABLE_SECONDS + 1, has_served=True) == FIRST_SECONDS
