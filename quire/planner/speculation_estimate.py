"""The gain of speculation, from the chance that a proposed token holds and what proposing costs.

A round proposes K tokens, one after the other, and checks them in one step of the model. Each holds
with probability ``a`` when those before it held; the model's own token follows the last one that
did. Costs are relative to a step of the model with one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Beyond any batch that is served.
MAX_BATCH = 1 << 20
_HALVINGS = 60


def expected_tokens(acceptance: float, num_tokens: int) -> float:
    """Return the mean number of tokens of a round: ``(1 - a^(K+1)) / (1 - a)``.

    Args:
        acceptance: Probability ``a``, in [0, 1].
        num_tokens: Number ``K`` of proposed tokens, at least 0.
    """
    total = 0.0  # the sum of which that is the closed form, which has no value at a = 1
    for _ in range(num_tokens + 1):
        total = total * acceptance + 1.0
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """The costs of steps, relative to a step of the model with one row.

    Args:
        draft: Cost ``c`` of proposing a token for each sequence, relative to a step that computes
            one token for each.
        row: Cost that each further row of a step adds.
        ridge: Rows from which on a step is bound by arithmetic, and takes as long as it has rows;
            None: never.
        batch: Number of sequences of a step.
    """

    draft: float
    row: float = 0.0
    ridge: float | None = None
    batch: int = 1

    def step(self, rows: int) -> float:
        """Return the cost of one step with that many rows."""
        bound = 1.0 if self.ridge is None else max(1.0, rows / self.ridge)
        return bound + self.row * (rows - 1)

    def round(self, num_tokens: int) -> float:
        """Return the cost of a round of K tokens a sequence, relative to a plain step.

        With one sequence and rows that cost nothing it is ``K c + 1``.
        """
        plain = self.step(self.batch)
        check = self.step(self.batch * (num_tokens + 1)) / plain
        return num_tokens * self.draft + check


def speedup(acceptance: float, num_tokens: int, costs: StepCosts) -> float:
    """Return tokens per time relative to decoding without speculation: ``E / (K c + 1)``."""
    return expected_tokens(acceptance, num_tokens) / costs.round(num_tokens)


def best_num_tokens(acceptance: float, costs: StepCosts, max_tokens: int) -> int:
    """Return the K in 0..``max_tokens`` with the highest speedup; the least of equal ones."""
    return max(range(max_tokens + 1), key=lambda k: (speedup(acceptance, k, costs), -k))


def break_even_acceptance(num_tokens: int, costs: StepCosts) -> float | None:
    """Return the acceptance from which on K tokens a round pay; None: none does.

    Args:
        num_tokens: Number K of proposed tokens, at least 1.
        costs: Costs of the steps.
    """
    cost = costs.round(num_tokens)
    if cost > num_tokens + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if expected_tokens(middle, num_tokens) < cost:
            low = middle
        else:
            high = middle
    return high


def implied_draft_cost(claimed: float, acceptance: float, num_tokens: int) -> float:
    """Return the ``c`` at which K tokens a round bring the claimed speedup to one sequence.

    Below 0 the claim cannot be: not even tokens that cost nothing would bring it.
    """
    return (expected_tokens(acceptance, num_tokens) / claimed - 1.0) / num_tokens


def last_paying_batch(acceptance: float, costs: StepCosts, max_tokens: int) -> int | None:
    """Return the largest batch at which some K pays; 0: not even one sequence; None: every batch.

    Rows to check grow with the batch while what they bring stays, so beyond it none does.
    """

    def pays(batch: int) -> bool:
        at = StepCosts(draft=costs.draft, row=costs.row, ridge=costs.ridge, batch=batch)
        return best_num_tokens(acceptance, at, max_tokens) > 0

    if pays(MAX_BATCH):
        return None
    low, high = 0, MAX_BATCH  # pays at low (or low is 0), not at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class SpeedupTable:
    """Speedups at one cost of a proposed token.

    Attributes:
        costs: Costs of the steps.
        acceptances, tokens: The rows and columns.
        max_tokens: Most proposed tokens, when the best number is looked for.
    """

    costs: StepCosts
    acceptances: tuple[float, ...]
    tokens: tuple[int, ...]
    max_tokens: int

    @property
    def ends(self) -> bool:
        """Whether there is a batch from which on nothing pays."""
        return self.costs.row > 0 or self.costs.ridge is not None

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each acceptance, with plain numbers."""
        rows = []
        for acceptance in self.acceptances:
            best = best_num_tokens(acceptance, self.costs, self.max_tokens)
            row: dict[str, Any] = {
                "draft_cost": self.costs.draft,
                "batch": self.costs.batch,
                "acceptance": acceptance,
                "speedup": {k: speedup(acceptance, k, self.costs) for k in self.tokens},
                "best_tokens": best,
                "best_speedup": speedup(acceptance, best, self.costs),
            }
            if self.ends:
                row["last_batch"] = last_paying_batch(acceptance, self.costs, self.max_tokens)
            rows.append(row)
        return rows

    def break_even(self) -> dict[int, float | None]:
        """Return by number of tokens the acceptance from which on it pays; None: none does."""
        return {k: break_even_acceptance(k, self.costs) for k in self.tokens}


def round_tokens(acceptances: Sequence[float], tokens: Sequence[int]) -> list[dict[str, Any]]:
    """Return for each acceptance the mean tokens of a round, by number of proposed ones."""
    return [
        {"acceptance": a, "tokens": {k: expected_tokens(a, k) for k in tokens}} for a in acceptances
    ]


def implied_costs(
    claimed: float, acceptances: Sequence[float], tokens: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the cost of a proposed token that a claimed speedup implies, for each pair."""
    return [
        {"acceptance": a, "tokens": k, "draft_cost": implied_draft_cost(claimed, a, k)}
        for a in acceptances
        for k in tokens
    ]
