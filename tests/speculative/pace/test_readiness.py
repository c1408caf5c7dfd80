"""When an engine is ready to propose, on a simulated one where it is known whether that pays."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from quire.speculative.pace.readiness import BLOCK_STEPS, Readiness


@dataclass
class Steps:
    """An engine whose steps take a second for each sequence's token, but for what is said.

    Attributes:
        gain_of: What a step brings that is ready, against one that is not.
        kept: Part of a step that it takes to keep states.
        begins_each: Steps between two new sequences.
    """

    gain_of: Callable[[int], float]
    kept: float = 0.03
    begins_each: int = 128
    noise: float = 0.1
    seconds: float = 0.0
    tokens: float = 0.0
    ready: list[bool] = field(default_factory=list)
    keeping: list[bool] = field(default_factory=list)

    def run(self, readiness: Readiness, num_steps: int, num_running: int = 1) -> None:
        draw = random.Random(3)
        for number in range(num_steps):
            is_new = number % self.begins_each == 0
            ready = readiness.is_ready(num_running, is_new, is_known=True)
            keeps = readiness.keeps_states
            tokens = self.gain_of(num_running) if ready else 1.0
            took = (1.0 + self.kept * keeps) * draw.uniform(1 - self.noise, 1 + self.noise)
            readiness.observe(ready, tokens, 1.0, took)
            self.seconds += took
            self.tokens += tokens
            self.ready.append(ready)
            self.keeping.append(keeps)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@pytest.mark.parametrize("gain", [0.6, 0.79, 0.9, 1.0])
def test_where_it_does_not_pay_it_is_left_but_for_a_few_tries(gain: float) -> None:
    """States were kept and sequences asked about in each step, whatever that had brought."""
    steps, readiness = Steps(lambda load: gain), Readiness()
    steps.run(readiness, 1000)
    assert gain == 1.0 or sum(steps.ready[:200]) <= 6 * BLOCK_STEPS
    later = Steps(lambda load: gain)
    later.run(readiness, 10000)
    assert 0 < sum(later.ready) <= 0.03 * 10000
    assert sum(later.keeping) == sum(later.ready)
    assert later.rate >= 0.98


@pytest.mark.parametrize("gain", [1.1, 1.5, 2.5])
def test_where_it_pays_it_stays(gain: float) -> None:
    readiness = Readiness()
    Steps(lambda load: gain).run(readiness, 500)
    later = Steps(lambda load: gain)
    later.run(readiness, 10000)
    assert all(later.keeping)  # sequences are not forgotten when others' turn comes
    assert 0 < later.ready.count(False) <= 0.03 * 10000
    assert later.rate >= 0.97 * gain / (1 + later.kept)


def test_each_load_has_its_own_answer() -> None:
    steps, readiness = Steps(lambda load: 1.6 if load < 8 else 0.8), Readiness()
    for _ in range(3):
        for load in (1, 64):
            steps.run(readiness, 400, load)
    alone, many = Steps(steps.gain_of), Steps(steps.gain_of)
    alone.run(readiness, 400, 2)
    alone = Steps(steps.gain_of)
    alone.run(readiness, 400, 1)
    many.run(readiness, 400, 64)
    assert sum(alone.ready) >= 300 and sum(many.ready) <= 2 * BLOCK_STEPS


def test_more_sequences_do_not_ask_anew_what_surely_does_not_pay() -> None:
    """Each new load was compared for half of the time until it was sure: 10% of 24 short parts.

    Fewer sequences do ask anew, as a proposal's row may cost them less.
    """
    few, more, one = (Steps(lambda load: 0.95, noise=0.4) for _ in range(3))
    readiness = Readiness()
    few.run(readiness, 2000, num_running=4)
    more.run(readiness, 800, num_running=16)
    one.run(readiness, 800)
    assert sum(more.ready) <= 2 * BLOCK_STEPS < sum(one.ready)


@pytest.mark.parametrize(("gain", "pays"), [(0.85, False), (1.5, True)])
def test_answers_shorter_than_a_comparison_are_learned_from(gain: float, pays: bool) -> None:
    """Each change of the load threw away what was measured: with short answers nothing was."""
    readiness = Readiness()
    for _ in range(40):
        for load in (1, 4, 16):
            Steps(lambda load: gain).run(readiness, BLOCK_STEPS + BLOCK_STEPS // 2, load)
    later = Steps(lambda load: gain)
    for load in (1, 4, 16) * 5:
        later.run(readiness, BLOCK_STEPS, load)
    assert (sum(later.ready) > len(later.ready) / 2) == pays
    assert all(later.keeping) == pays


def test_tries_that_a_load_is_too_short_for_get_rare() -> None:
    """Each time that the load came back, one was begun anew: half of its steps, for ever."""
    readiness, short = Readiness(), BLOCK_STEPS // 2
    Steps(lambda load: 0.85).run(readiness, 1000, 4)
    for _ in range(1000):
        Steps(lambda load: 0.85).run(readiness, 8, 1)
        Steps(lambda load: 0.85).run(readiness, 2 * short, 4)
    later = Steps(lambda load: 0.85)
    for _ in range(500):
        later.run(readiness, short, 4)
        Steps(lambda load: 0.85).run(readiness, 8, 1)
    assert sum(later.ready) <= 0.03 * len(later.ready)


def test_a_text_that_changes_is_followed() -> None:
    readiness = Readiness()
    Steps(lambda load: 0.8).run(readiness, 2000)
    later = Steps(lambda load: 1.8)
    later.run(readiness, 6000)
    assert sum(later.ready[-1000:]) >= 900


def test_tries_wait_for_a_sequence_that_drafters_know() -> None:
    readiness = Readiness()
    Steps(lambda load: 0.8, begins_each=100).run(readiness, 1000)
    later = Steps(lambda load: 0.8, begins_each=100)
    later.run(readiness, 5000)
    begun = [
        n for n, (a, b) in enumerate(zip([False, *later.ready], later.ready, strict=False)) if b > a
    ]
    assert begun and all(number % 100 == 0 for number in begun)


def test_a_length_set_by_hand_is_always_ready() -> None:
    steps = Steps(lambda load: 0.5)
    steps.run(Readiness(is_wanted=False), 500)
    assert all(steps.ready) and all(steps.keeping)


def test_what_is_by_chance_better_is_not_tried_more_and_more() -> None:
    """Where both sides bring the same, every second try promised something by noise alone."""
    readiness = Readiness()
    Steps(lambda load: 1.0, kept=0.0, noise=0.3).run(readiness, 4000)
    later = Steps(lambda load: 1.0, kept=0.0, noise=0.3)
    later.run(readiness, 40000)
    assert sum(later.ready) <= 0.02 * 40000


def test_what_drafters_make_up_for_is_paid_back() -> None:
    """Tries of a draft model, each with prompts to compute first, took a tenth of the time."""
    readiness = Readiness()
    Steps(lambda load: 0.9).run(readiness, 4000)
    seconds = tried = 0.0
    was_ready = False
    for number in range(60000):
        ready = readiness.is_ready(1, number % 128 == 0, is_known=True)
        took = 1.0 + 60.0 * (ready and not was_ready)
        readiness.observe(ready, 0.9 if ready else 1.0, 1.0, took)
        seconds += took
        tried += took - 1.0
        was_ready = ready
    assert 0.0 < tried <= 0.01 * seconds
