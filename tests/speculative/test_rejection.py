"""Tokens that rejection lets through are distributed as the target's; two mistakes are not."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest

from quire.speculative import rejection
from quire.speculative.rejection import HOLDS, num_held, residual, stream_seed, uniform

P, Q = np.float32([0.5, 0.3, 0.2]), np.float32([0.2, 0.3, 0.5])
Residual = Callable[[np.ndarray, np.ndarray | None, int], np.ndarray]


def only_at_the_token(target: np.ndarray, draft: np.ndarray | None, token: int) -> np.ndarray:
    """The mistake of keeping q at the proposed token alone (E06)."""
    left = target.copy()
    left[token] = max(0.0, target[token] - draft[token])
    return left


def of_the_target(target: np.ndarray, draft: np.ndarray | None, token: int) -> np.ndarray:
    """The mistake of drawing from p where a proposal does not hold (E08)."""
    return target


def running(weights: np.ndarray) -> list[float]:
    """Return the running shares of weights, of which :func:`drawn` draws."""
    sums = np.cumsum(weights, dtype=np.float64)
    return (sums / sums[-1]).tolist()


def drawn(shares: list[float], number: float) -> int:
    return bisect_right(shares, number)


def distance(of_rest: Residual, count: int) -> float:
    """Return how far one token's distribution is from the target's, in total variation."""
    numbers = np.random.default_rng(1).random((count, 3)).tolist()
    drafts, rests = running(Q), [running(of_rest(P, Q, token)) for token in range(3)]

    def one_token(first: float, second: float, third: float) -> int:
        token = drawn(drafts, first)
        held = num_held(P[None], Q[None], [token], [second])
        return token if held else drawn(rests[token], third)

    found = Counter(one_token(*row) for row in numbers)
    return sum(abs(found[token] / count - float(P[token])) for token in range(3)) / 2


def test_a_token_is_distributed_as_the_target_says() -> None:
    assert distance(residual, 30_000) < 0.01


@pytest.mark.parametrize(
    ("mistake", "expected"), [(only_at_the_token, 0.1125), (of_the_target, 0.15)]
)
def test_mistakes_show(mistake: Residual, expected: float) -> None:
    assert distance(mistake, 30_000) == pytest.approx(expected, abs=0.01)


class Model(NamedTuple):
    """A model of six tokens: distributions by the tokens before, and their running shares."""

    probabilities: Callable[[tuple[int, ...]], np.ndarray]
    shares: Callable[[tuple[int, ...]], list[float]]


def model(shift: float) -> Model:
    """A model of six tokens, whose distribution depends on all before."""

    @cache
    def probabilities(before: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng([17, *before])
        logits = random.standard_normal(6) + shift * np.random.default_rng([5, *before]).random(6)
        weights = np.exp(logits)
        return (weights / weights.sum()).astype(np.float32)

    return Model(probabilities, cache(lambda before: running(probabilities(before))))


def generator(
    random: np.random.Generator, target: Model, draft: Model | None
) -> Callable[[], tuple[int, ...]]:
    """Return what generates three tokens, with the distributions that it meets computed once."""

    @cache
    def verified(before: tuple[int, ...], proposed: tuple[int, ...]) -> tuple[Any, Any]:
        """Return p and q at two proposals."""
        places = [(*before, *proposed[:k]) for k in range(2)]
        p = np.stack([target.probabilities(place) for place in places])
        q = None if draft is None else np.stack([draft.probabilities(place) for place in places])
        return p, q

    @cache
    def rest(before: tuple[int, ...], token: int) -> list[float]:
        q = None if draft is None else draft.probabilities(before)
        return running(residual(target.probabilities(before), q, token))

    numbers = iter(lambda: random.random(10_000).tolist(), None)
    following = chain.from_iterable(numbers).__next__
    return lambda: generate(following, verified, rest, target, draft)


def generate(
    number: Callable[[], float],
    verified: Callable[[tuple[int, ...], tuple[int, ...]], tuple[Any, Any]],
    rest: Callable[[tuple[int, ...], int], list[float]],
    target: Model,
    draft: Model | None,
) -> tuple[int, ...]:
    """Three tokens in rounds of two proposals, and the token after them where both hold."""
    output: tuple[int, ...] = ()
    while len(output) < 3:
        proposed: tuple[int, ...] = ()
        for _ in range(2):
            before = output + proposed
            if draft is None:  # looked up: a token that follows from what is before it
                proposed += ((len(before) * 7 + sum(before)) % 6,)
            else:
                proposed += (drawn(draft.shares(before), number()),)
        held = num_held(*verified(output, proposed), proposed, [number(), number()])
        output += proposed[:held]
        shares = target.shares(output) if held == 2 else rest(output, proposed[held])
        output += (drawn(shares, number()),)
    return output[:3]


@pytest.mark.parametrize("drafts", [True, False], ids=["drawn", "looked up"])
def test_three_tokens_are_distributed_as_the_target_says(drafts: bool) -> None:
    """Chi-square over the 216 outputs of three tokens."""
    target, draft = model(0.0), model(2.0) if drafts else None
    one = generator(np.random.default_rng(3), target, draft)
    count = 100_000
    found = Counter(one() for _ in range(count))
    square = 0.0
    for a, b, c in np.ndindex(6, 6, 6):
        places = (((), a), ((a,), b), ((a, b), c))
        p = math.prod(float(target.probabilities(before)[token]) for before, token in places)
        square += (found[(a, b, c)] - count * p) ** 2 / (count * p)
    degrees = 215
    assert square < degrees + 3.3 * (2 * degrees) ** 0.5  # p of about 0.001


def test_the_streams_of_a_request_are_others() -> None:
    seeds = {7, *(stream_seed(7, stream) for stream in (1, 2, 3))}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**64 for seed in seeds)
    numbers = [
        uniform(stream_seed(seed, HOLDS), position) for seed in range(50) for position in range(50)
    ]
    assert min(numbers) >= 0.0 and max(numbers) < 1.0
    assert np.mean(numbers) == pytest.approx(0.5, abs=0.02)
    assert rejection.DRAFT != rejection.RESIDUAL


def test_what_is_equal_but_for_rounding_leaves_the_target() -> None:
    p = np.float32([0.25, 0.75])
    assert residual(p, p, 0).tolist() == p.tolist()
    assert num_held(p[None], p[None], [1], [0.999999]) == 1
