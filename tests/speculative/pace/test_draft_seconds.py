"""What drafting is thought to take, from the first rounds on."""

from __future__ import annotations

import pytest

from quire.speculative.pace.draft_seconds import DraftSeconds


def real(length: int) -> float:
    return 2e-4 + 2e-5 * length


@pytest.mark.parametrize("first", [5e-4, 9e-4, 6e-3])
def test_first_rounds_that_take_longer_decide_nothing(first: float) -> None:
    """A head that makes answers 1.5 times as fast was never used again after them."""
    known = DraftSeconds()
    for _ in range(2):
        known.observe(1, 4, first, is_steady=False)
        assert known.predict(1, 4) <= 0.5 * first <= known.seen(1, 4)
    for _ in range(10):
        known.observe(1, 4, real(4), is_steady=True)
    assert known.predict(1, 4) == pytest.approx(real(4), rel=0.1)


def test_many_sequences_that_draft_say_nothing_of_one() -> None:
    known = DraftSeconds()
    assert known.predict(1, 4) == known.seen(1, 4) == 0.0
    for number in range(40):
        length = 1 + number % 4
        known.observe(64, length, 30 * real(length), is_steady=True)
        known.observe(1, length, real(length), is_steady=True)
    for length in (1, 4):
        assert known.predict(64, length) == pytest.approx(30 * real(length), rel=0.1)
        assert known.predict(1, length) == pytest.approx(real(length), rel=0.1)
    assert known.predict(1, 0) == 0.0
