"""Tokens that rejection lets through are distributed as the target's; two mistakes are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

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


def one_token(random: np.random.Generator, of_rest: Residual) -> int:
    token = int(random.choice(3, p=Q / Q.sum(dtype=np.float64)))
    if num_held(P[None], Q[None], [token], [random.random()]):
        return token
    left = of_rest(P, Q, token).astype(np.float64)
    return int(random.choice(3, p=left / left.sum()))


def distance(of_rest: Residual, count: int) -> float:
    random = np.random.default_rng(1)
    found = Counter(one_token(random, of_rest) for _ in range(count))
    return sum(abs(found[token] / count - float(P[token])) for token in range(3)) / 2


def test_a_token_is_distributed_as_the_target_says() -> None:
    assert distance(residual, 30_000) < 0.01


@pytest.mark.parametrize(
    ("mistake", "expected"), [(only_at_the_token, 0.1125), (of_the_target, 0.15)]
)
def test_mistakes_show(mistake: Residual, expected: float) -> None:
    assert distance(mistake, 30_000) == pytest.approx(expected, abs=0.01)


def model(shift: float) -> Callable[[tuple[int, ...]], np.ndarray]:
    """A model of six tokens, whose distribution depends on all before."""

    @cache
    def probabilities(before: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng([17, *before])
        logits = random.standard_normal(6) + shift * np.random.default_rng([5, *before]).random(6)
        weights = np.exp(logits)
        return (weights / weights.sum()).astype(np.float32)

    return probabilities


def generate(
    random: np.random.Generator,
    target: Callable[[tuple[int, ...]], np.ndarray],
    draft: Callable[[tuple[int, ...]], np.ndarray] | None,
) -> tuple[int, ...]:
    """Three tokens in rounds of two proposals, and the token after them where both hold."""

    def draw(weights: np.ndarray) -> int:
        exact = weights.astype(np.float64)
        return int(random.choice(len(exact), p=exact / exact.sum()))

    output: tuple[int, ...] = ()
    while len(output) < 3:
        proposed: list[int] = []
        drafts = []
        for k in range(2):
            before = (*output, *proposed)
            if draft is None:  # looked up: a token that follows from what is before it
                proposed.append((len(before) * 7 + sum(before)) % 6)
            else:
                drafts.append(draft(before))
                proposed.append(draw(drafts[k]))
        targets = [target((*output, *proposed[:k])) for k in range(3)]
        q = None if draft is None else np.stack(drafts)
        held = num_held(np.stack(targets[:2]), q, proposed, [random.random(), random.random()])
        output += tuple(proposed[:held])
        if held == 2:
            output += (draw(targets[2]),)
        else:
            own = None if q is None else q[held]
            output += (draw(residual(targets[held], own, proposed[held])),)
    return output[:3]


@pytest.mark.parametrize("drafts", [True, False], ids=["drawn", "looked up"])
def test_three_tokens_are_distributed_as_the_target_says(drafts: bool) -> None:
    """Chi-square over the 216 outputs of three tokens."""
    target, draft = model(0.0), model(2.0) if drafts else None
    random = np.random.default_rng(3)
    count = 100_000
    found = Counter(generate(random, target, draft) for _ in range(count))
    square = 0.0
    for a, b, c in np.ndindex(6, 6, 6):
        p = float(target(())[a]) * float(target((a,))[b]) * float(target((a, b))[c])
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
