"""What a step takes, learned from steps whose seconds are known here."""

from __future__ import annotations

import random

import pytest

from quire.planner.step_times import StepTimes


def test_steps_of_one_row_alone_leave_the_others_what_they_were() -> None:
    """A step of four was thought to take a third longer, in the end, than one of them did."""
    measured = {1: 0.0205, 4: 0.022, 8: 0.024, 16: 0.048}
    known, draw = StepTimes(measured), random.Random(7)
    for _ in range(20000):
        known.observe(0.0205 * draw.uniform(0.9, 1.1), 1)
    for count, seconds in measured.items():
        assert 0.8 * seconds < known.seconds(count) < 1.2 * seconds


def test_a_time_of_its_own_and_a_factor_are_both_found() -> None:
    known, draw = StepTimes({1: 0.010, 8: 0.020, 16: 0.040}), random.Random(7)
    for number in range(2000):
        count = (1, 8, 16)[number % 3]
        seconds = 0.005 + 1.2 * {1: 0.010, 8: 0.020, 16: 0.040}[count]
        known.observe(seconds * draw.uniform(0.9, 1.1), count)
    assert 0.016 < known.seconds(1) < 0.018
    assert 0.050 < known.seconds(16) < 0.056


#: Seconds of a step, of a decode and of a prompt's token.
MACHINES = [(0.001, 1e-4, 6e-5), (0.06, 4e-3, 3e-3), (0.05, 5e-4, 2e-3), (0.002, 2e-5, 2e-4)]


@pytest.mark.parametrize("machine", MACHINES)
def test_steps_like_the_last_ones_are_predicted(machine: tuple[float, float, float]) -> None:
    """Whatever a step, a decode and a prompt's token cost; some steps meet a noisy neighbour."""
    own, decode, prompt = machine
    rng, known = random.Random(1), StepTimes()
    missed = []
    for number in range(600):
        decodes, tokens = rng.randrange(1, 200), rng.choice([0, 0, 16, 112, 400])
        seconds = own + decode * decodes + prompt * tokens
        if number >= 300:
            missed.append(abs(known.seconds(decodes, tokens) / seconds - 1))
        noise = 3.0 if rng.random() < 0.03 else rng.uniform(0.97, 1.03)
        known.observe(noise * seconds, decodes, tokens)
    assert sorted(missed)[len(missed) // 2] < 0.05


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("target", [0.3, 1.0])
def test_the_tokens_that_fit_keep_a_step_within_its_time(
    machine: tuple[float, float, float], target: float
) -> None:
    """While the number of decodes changes, and from the first steps on."""
    own, decode, prompt = machine
    known, decodes, times = StepTimes(), 0, list[float]()
    known.observe(own + prompt * 112, 0, 112)
    for number in range(200):
        tokens = min(max(known.prompt_tokens(target, decodes), 16), 5000)
        seconds = own + decode * decodes + prompt * tokens
        if number >= 5 and 16 < tokens < 5000:
            times.append(seconds)
        known.observe(seconds, decodes, tokens)
        decodes = decodes + 3 if number % 100 < 60 else max(decodes - 5, 0)
    for seconds in times:
        assert seconds <= 1.15 * target
    if times:
        assert sum(times) / len(times) == pytest.approx(target, rel=0.1)
