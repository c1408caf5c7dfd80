"""What a step takes by its rows, learned from steps whose seconds are known here."""

from __future__ import annotations

import random

from quire.speculative.pace.row_seconds import RowSeconds


def test_steps_of_one_row_alone_leave_the_others_what_they_were() -> None:
    """A step of four was thought to take a third longer, in the end, than one of them did."""
    measured = {1: 0.0205, 4: 0.022, 8: 0.024, 16: 0.048}
    rows, draw = RowSeconds(measured), random.Random(7)
    for _ in range(20000):
        rows.observe(1, 0.0205 * draw.uniform(0.9, 1.1))
    for count, seconds in measured.items():
        assert 0.8 * seconds < rows.predict(count) < 1.2 * seconds


def test_a_time_of_its_own_and_a_factor_are_both_found() -> None:
    rows, draw = RowSeconds({1: 0.010, 8: 0.020, 16: 0.040}), random.Random(7)
    for number in range(2000):
        count = (1, 8, 16)[number % 3]
        seconds = 0.005 + 1.2 * {1: 0.010, 8: 0.020, 16: 0.040}[count]
        rows.observe(count, seconds * draw.uniform(0.9, 1.1))
    assert 0.016 < rows.predict(1) < 0.018
    assert 0.050 < rows.predict(16) < 0.056
