"""Verification by rejection: a proposal x holds with probability min(1, p(x) / q(x)).

p is what the target draws from at a position and q what the drafter drew x from, both after the
request's settings. Where a proposal does not hold, the token is drawn from the part of p that q
leaves: ``max(0, p - q)`` over the whole vocabulary, normalised. Tokens are then distributed as p
says (Leviathan, Kalman and Matias 2023; Chen et al. 2023). The answer is another one than without
speculation, of the same distribution. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.sampling import draw_keys

FloatArray = npt.NDArray[np.float32]

#: Random numbers that must not depend on one another, each by its own seed: of the drafter's
#: draws, of whether proposals hold, and of the tokens drawn where they do not.
DRAFT, HOLDS, RESIDUAL = 1, 2, 3


def stream_seed(seed: int, stream: int) -> int:
    """Return the seed, of 64 bits, of one of a request's streams of random numbers."""
    low, high, _, _ = draw_keys(seed, -1 - stream)
    return high << 32 | low


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1), of 53 bits, of a stream at a position of the output."""
    low, high, _, _ = draw_keys(seed, position)
    return float((high << 32 | low) >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Rejection:
    """Verifies one sequence's proposals of a step.

    Attributes:
        seed: The request's seed.
        draft: (K, V), distribution that each proposal was drawn from; None where none was drawn.
    """

    seed: int
    draft: FloatArray | None

    def verify(
        self, target: FloatArray, proposed: Sequence[int], positions: Sequence[int]
    ) -> tuple[int, int | None]:
        """Return how many proposals hold, and the token that follows where one does not.

        Args:
            target: (K, V), p at the position of each proposal.
            proposed: K tokens.
            positions: K positions of the proposals in the output.
        """
        holds, residuals = (stream_seed(self.seed, stream) for stream in (HOLDS, RESIDUAL))
        numbers = [uniform(holds, int(position)) for position in positions]
        held = num_held(target, self.draft, proposed, numbers)
        if held == len(proposed):
            return held, None
        draft = None if self.draft is None else self.draft[held]
        weights = residual(target[held], draft, proposed[held])
        return held, draw(weights, uniform(residuals, int(positions[held])))


def num_held(
    target: FloatArray,
    draft: FloatArray | None,
    proposed: Sequence[int],
    numbers: Sequence[float],
) -> int:
    """Return how many leading proposals hold.

    Args:
        target: (K, V), p at the position of each proposal.
        draft: (K, V), distribution that each proposal was drawn from; None where proposals were
            not drawn at all, so that q is 1 at the token.
        proposed: K tokens.
        numbers: K uniform numbers.
    """
    for k, (token, number) in enumerate(zip(proposed, numbers, strict=True)):
        q = 1.0 if draft is None else float(draft[k, token])
        if not number * q < float(target[k, token]):
            return k
    return len(proposed)


def residual(target: FloatArray, draft: FloatArray | None, token: int) -> FloatArray:
    """Return the weights (V,) that the token is drawn by where a proposal did not hold.

    Args:
        target: (V,), p.
        draft: (V,), q; None where ``token`` was not drawn.
        token: Id of the token that was proposed.
    """
    left = target.copy()
    if draft is None:
        left[token] = 0.0
    else:
        np.maximum(target - draft, 0.0, out=left)
    # p and q are rounded: where they are equal but for that, nothing is left of p.
    return left if left.any() else target


def draw(weights: FloatArray, number: float) -> int:
    """Return the first token at which the running weight exceeds ``number`` of their sum."""
    running = np.cumsum(weights, dtype=np.float64)
    return int(np.searchsorted(running, number * running[-1], side="right"))
