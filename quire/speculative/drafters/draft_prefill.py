"""Number of known tokens that a drafter computes in a step, where it has many to make up for.

A prompt that the target has read is new to a drafter with a cache of its own. As long as the
drafter reads, the sequence gets no proposals, and every request of the step waits: so the drafter
reads about as long as the target's step takes. Nothing here has a clock. B rows of the token table.
"""

from __future__ import annotations

import numpy as np

from quire.kernels.batch.token_table import IntArray

#: Tokens of a step: at least, as long as nothing was measured, and at most.
LEAST_TOKENS, FIRST_TOKENS, MOST_TOKENS = 64, 512, 1024
#: At most, of a head: no more than 2,048 states wait for it, and its buffers come on top of those.
MOST_PAIRS = 512
#: A row that wants no more keeps up: what it accepted in the last round, and a token.
KEEPING_UP = 16
#: What a measured batch is worth after another one.
DECAY = 0.75


class DraftPrefill:
    """Divides a step's tokens of one drafter.

    Args:
        most_tokens: Tokens that the drafter's buffers have room for.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._target_seconds: tuple[float, ...] = ()  # of its last two steps
        self._num_tokens = self._seconds = 0.0  # decayed sums of what was measured

    def step_took(self, seconds: float) -> None:
        """Note how long a step of the target took without drafting."""
        self._target_seconds = (*self._target_seconds[-1:], seconds)

    def computed(self, num_tokens: int, seconds: float) -> None:
        """Note how long the drafter took for a batch of known tokens.

        Small batches are passed over: they take as long as reading the weights does.
        """
        if num_tokens >= LEAST_TOKENS:
            self._num_tokens = DECAY * self._num_tokens + num_tokens
            self._seconds = DECAY * self._seconds + seconds

    def num_tokens(self) -> int:
        """Return how many tokens take as long as a step of the target.

        Of the last two steps the shorter one counts: the longer one may have had a prompt.
        """
        wanted = FIRST_TOKENS
        if self._target_seconds and self._seconds > 0.0:
            wanted = int(min(self._target_seconds) * self._num_tokens / self._seconds)
        return min(max(wanted, LEAST_TOKENS), self._most_tokens)

    def share(self, wanted: IntArray) -> IntArray:
        """Return how many of its tokens (B,) each row gets; rows that keep up get all of them."""
        total = int(wanted.sum())
        if total <= LEAST_TOKENS:
            return wanted
        keeping_up = int(wanted[wanted <= KEEPING_UP].sum())
        return share(wanted, min(keeping_up + self.num_tokens(), self._most_tokens))


def share(wanted: IntArray, budget: int) -> IntArray:
    """Divide a budget of tokens (B,) among rows: those that want few get all of theirs first."""
    if wanted.sum() <= budget:
        return wanted
    order = np.argsort(wanted, kind="stable")
    before = np.cumsum(wanted[order]) - wanted[order]
    shares = np.empty_like(wanted)
    shares[order] = np.clip(budget - before, 0, wanted[order])
    return shares


def most_tokens(max_num_batched_tokens: int, limit: int = MOST_TOKENS) -> int:
    """Return the most tokens of a drafter's step: no more than the target computes in one."""
    return max(min(limit, max_num_batched_tokens), LEAST_TOKENS)
