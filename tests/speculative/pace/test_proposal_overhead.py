"""What being ready for proposals takes, told from what rows and drafts take; and how often it is
in vain."""

from __future__ import annotations

import random

import pytest

from quire.core.speculative_config import SpeculativeMethod
from quire.core.step import SequenceResult
from quire.speculative.pace.controller import Controller
from quire.speculative.pace.lookup_hit_rate import LookupHitRate
from quire.speculative.pace.proposal_overhead import FIRST_PLAIN, PLAIN_EVERY, ProposalOverhead
from tests.speculative.pace.test_controller import Decoding


def test_both_kinds_of_steps_are_wanted_and_their_difference_is_found() -> None:
    """Whatever the load, and where the prediction is wrong for both."""
    known, draw = ProposalOverhead(), random.Random(1)
    kinds = []
    for _ in range(4 * PLAIN_EVERY):
        asked = not known.wants_plain
        kinds.append(asked)
        rows = draw.choice((1.0, 2.0, 4.0))
        seconds = rows + (0.25 if asked else 0.15) + draw.uniform(-0.05, 0.05)
        known.observe(seconds, rows, asked=asked)
    assert kinds[:FIRST_PLAIN] == [False] * FIRST_PLAIN
    assert kinds.count(False) == FIRST_PLAIN + 2  # after 64 with proposals, and 128 more
    assert known.seconds == pytest.approx(0.1, abs=0.05)


def test_a_few_steps_say_little() -> None:
    known = ProposalOverhead()
    known.observe(0.2, 0.3, asked=False)
    known.observe(0.4, 0.3, asked=True)
    assert known.seconds < 0.06


def test_one_long_step_says_little() -> None:
    known = ProposalOverhead()
    for _ in range(10):
        known.observe(0.3, 0.3, asked=False)
        known.observe(0.4, 0.3, asked=True)
    known.observe(50.0, 0.3, asked=True)
    assert known.seconds < 0.2


def test_a_new_text_begins_where_others_are_and_goes_its_own_way() -> None:
    others = LookupHitRate()
    for _ in range(30):
        others.observe(0.0)
    own = LookupHitRate(others)
    assert own.value == others.value < 0.3
    for _ in range(3):
        own.observe(1.0)
    assert own.value > 0.5


@pytest.mark.parametrize("finds", [False, True])
def test_a_lookup_that_finds_nothing_is_asked_seldom(finds: bool) -> None:
    """Where asking alone takes a third of a step, and rows nothing."""
    method = SpeculativeMethod(method="ngram", num_speculative_tokens=4)
    controller = Controller((method,), {1: 0.3, 8: 0.3, 32: 0.3})
    live, num_asked = [Decoding("a")], 0
    for _ in range(600):
        (most,) = controller.choose(live, 0)
        if most:
            num_asked += 1
            count = most if finds else 0
            result = SequenceResult([1] * (count + 1), count, num_proposed=count)
            controller.observe(live[0], result)
            controller.step_ended(1 + count, 0.4, 0.0)
        else:
            controller.step_ended(1, 0.3, 0.0)
    assert num_asked >= 500 if finds else num_asked <= 60
