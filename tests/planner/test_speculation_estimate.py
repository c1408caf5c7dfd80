"""The arithmetic of speculation: known values, and rounds that are played out."""

from __future__ import annotations

import random

import pytest

from quire.planner.speculation_estimate import (
    StepCosts,
    best_num_tokens,
    break_even_acceptance,
    expected_tokens,
    implied_draft_cost,
    last_paying_batch,
    speedup,
)


@pytest.mark.parametrize(
    ("num_tokens", "means"),
    [
        (0, [1.0, 1.0, 1.0, 1.0, 1.0]),
        (3, [1.88, 2.53, 2.95, 3.44, 3.71]),
        (4, [1.94, 2.77, 3.36, 4.10, 4.52]),
        (8, [2.00, 3.20, 4.33, 6.13, 7.40]),
    ],
)
def test_tokens_of_a_round(num_tokens: int, means: list[float]) -> None:
    found = [round(expected_tokens(a, num_tokens), 2) for a in (0.5, 0.7, 0.8, 0.9, 0.95)]
    assert found == means
    assert expected_tokens(0.0, num_tokens) == 1.0
    assert expected_tokens(1.0, num_tokens) == num_tokens + 1


def test_speedups() -> None:
    costs = StepCosts(draft=0.05)
    found = [speedup(a, 5, costs) for a in (0.5, 0.7, 0.8, 0.9, 0.95)]
    assert found == pytest.approx([1.575, 2.3529, 2.9514, 3.7485, 4.2386], abs=1e-4)
    assert round(speedup(0.6, 5, StepCosts(draft=8 / 70)), 2) == 1.52
    a_tenth = StepCosts(draft=0.1)
    assert round(speedup(0.8, 4, a_tenth), 2) == 2.40
    assert round(speedup(0.75, 8, a_tenth), 2) == 2.06
    assert speedup(0.9, 0, a_tenth) == 1.0


@pytest.mark.parametrize(
    ("draft_cost", "acceptance"),
    [(0.01, 0.05), (0.05, 0.20), (0.1, 0.33), (8 / 70, 0.365), (0.25, 0.57)],
)
def test_the_acceptance_from_which_on_five_tokens_pay(draft_cost: float, acceptance: float) -> None:
    costs = StepCosts(draft=draft_cost)
    found = break_even_acceptance(5, costs)
    assert found is not None and abs(found - acceptance) < 0.005
    assert speedup(found, 5, costs) == pytest.approx(1.0, abs=1e-9)
    assert speedup(found - 0.01, 5, costs) < 1.0


def test_a_draft_as_dear_as_the_model_never_pays() -> None:
    assert break_even_acceptance(4, StepCosts(draft=1.0)) == pytest.approx(1.0)
    assert break_even_acceptance(4, StepCosts(draft=1.01)) is None
    assert break_even_acceptance(4, StepCosts(draft=0.0)) == pytest.approx(0.0)
    assert best_num_tokens(0.99, StepCosts(draft=1.0), 16) == 0


def test_claims_that_cannot_both_hold() -> None:
    """2.3 times at 80% with K=4, and 2.7 times at 75% with K=8, by the same draft."""
    assert implied_draft_cost(2.3, 0.8, 4) == pytest.approx(0.115, abs=5e-4)
    assert implied_draft_cost(2.7, 0.75, 8) == pytest.approx(0.046, abs=5e-4)
    assert implied_draft_cost(5.0, 0.75, 8) < 0, "3.7 tokens a round are no five"
    for acceptance, tokens, claimed in ((0.8, 4, 2.3), (0.75, 8, 2.7)):
        costs = StepCosts(draft=implied_draft_cost(claimed, acceptance, tokens))
        assert speedup(acceptance, tokens, costs) == pytest.approx(claimed)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("draft_cost", [0.0, 0.01, 0.05, 0.1, 0.25])
def test_no_other_number_of_tokens_is_better(acceptance: float, draft_cost: float) -> None:
    costs = StepCosts(draft=draft_cost, row=0.02, batch=3)
    best = best_num_tokens(acceptance, costs, 12)
    gains = [speedup(acceptance, k, costs) for k in range(13)]
    assert gains[best] == max(gains) and max(gains[:best], default=0.0) < max(gains)
    assert best > 0 or max(gains) == 1.0


@pytest.mark.parametrize(("acceptance", "num_tokens"), [(0.5, 4), (0.8, 4), (0.8, 8), (0.95, 5)])
def test_rounds_played_out(acceptance: float, num_tokens: int) -> None:
    """Tokens and time of 200,000 rounds, a token and a step at a time."""
    chance = random.Random(7)
    costs = StepCosts(draft=0.05, row=0.01, batch=4)
    tokens, time, plain = 0, 0.0, costs.step(costs.batch)
    for _ in range(200_000):
        held = 0
        while held < num_tokens and chance.random() < acceptance:
            held += 1
        tokens += held + 1
        time += sum(costs.draft * plain for _ in range(num_tokens))
        time += costs.step(costs.batch * (num_tokens + 1))
    mean = expected_tokens(acceptance, num_tokens)
    assert tokens / 200_000 == pytest.approx(mean, rel=0.01)
    assert (tokens / time) * plain == pytest.approx(
        speedup(acceptance, num_tokens, costs), rel=0.01
    )


def test_checking_is_free_up_to_the_ridge() -> None:
    """An H200 in bfloat16 has its ridge at 206 rows: five tokens are free below 34 sequences."""
    h200 = [StepCosts(draft=0.05, ridge=206.0, batch=batch) for batch in range(1, 65)]
    free = [costs.batch for costs in h200 if costs.round(5) == 5 * 0.05 + 1]
    assert free == list(range(1, 35))
    saturated = StepCosts(draft=0.05, ridge=206.0, batch=256)
    assert speedup(0.9, 5, saturated) < 1.0, "at a large batch even 90% lose"
    assert best_num_tokens(0.9, saturated, 16) == 0


@pytest.mark.parametrize("ridge", [None, 40.0])
@pytest.mark.parametrize(("acceptance", "row"), [(0.5, 0.05), (0.7, 0.02), (0.9, 0.1)])
def test_the_last_batch_that_pays(acceptance: float, row: float, ridge: float | None) -> None:
    last = last_paying_batch(acceptance, StepCosts(draft=0.05, row=row, ridge=ridge), 8)
    assert last is not None and last > 0
    for batch in range(1, 2 * last + 2):
        costs = StepCosts(draft=0.05, row=row, ridge=ridge, batch=batch)
        assert (best_num_tokens(acceptance, costs, 8) > 0) == (batch <= last), batch


def test_batches_without_an_end() -> None:
    assert last_paying_batch(0.8, StepCosts(draft=0.05), 8) is None, "rows cost nothing"
    assert last_paying_batch(1.0, StepCosts(draft=0.0, row=0.1), 8) is None, "all tokens hold"
    assert last_paying_batch(0.04, StepCosts(draft=0.05, row=0.1), 8) == 0
