"""Acceptance rates of proposed tokens by position in a round: counted, and expected next.

A position is tried when all before it held. What a request has shown lately weighs against what
its method shows on all requests, so that a new request begins where the others are.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.step import SequenceResult

#: Before anything is known: how often a first proposal holds, worth that many tries.
FIRST_GUESS, GUESS_TRIES = 0.7, 4.0
#: What a round of a method, and of a request, is worth after another one.
METHOD_DECAY, REQUEST_DECAY = 0.99, 0.96
#: Proposed tokens of a method before which nothing is said of it.
ENOUGH_TOKENS = 200
#: Tries that a request needs to count as much as its method.
REQUEST_TRIES = 8.0
#: Rounds of a request that say nothing of later ones: first words of answers are guessed worst.
FIRST_ROUNDS = 4
LEAST, MOST = 0.01, 0.995


class MethodAcceptance:
    """One method's rounds.

    Attributes:
        num_drafts: Rounds in which something was proposed.
        num_draft_tokens: Tokens that were proposed.
        num_accepted: Proposed tokens that held.
        accepted_at: Rounds whose proposal at a position held, by position.
    """

    def __init__(self) -> None:
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted = 0
        self.accepted_at: list[int] = []
        self._tried: list[float] = []
        self._held: list[float] = []
        self._recent_tried = self._recent_accepted = 0.0

    @property
    def rate(self) -> float | None:
        """Part of the proposals that held lately, among those whose predecessors all held.

        None before enough were tried.

        Unlike accepted over proposed tokens it does not fall with the length of proposals.
        """
        if self.num_draft_tokens < ENOUGH_TOKENS:
            return None
        return self._recent_accepted / self._recent_tried

    def observe(self, result: SequenceResult) -> None:
        """Count a round in which tokens were proposed."""
        num_proposed, num_accepted = result.num_proposed, result.num_accepted
        num_tried = min(num_accepted + 1, num_proposed)
        self._recent_tried = METHOD_DECAY * self._recent_tried + num_tried
        self._recent_accepted = METHOD_DECAY * self._recent_accepted + num_accepted
        self.num_drafts += 1
        self.num_draft_tokens += num_proposed
        self.num_accepted += num_accepted
        while len(self.accepted_at) < num_proposed:
            self.accepted_at.append(0)
            self._tried.append(0.0)
            self._held.append(0.0)
        for position in range(num_accepted):
            self.accepted_at[position] += 1
        for position in range(num_tried):
            self._tried[position] = METHOD_DECAY * self._tried[position] + 1.0
            self._held[position] = METHOD_DECAY * self._held[position] + (position < num_accepted)

    def expected(self, num_positions: int) -> list[float]:
        """Return, for each position, how often its proposal holds when all before it held."""
        found, before = [], FIRST_GUESS
        for position in range(num_positions):
            if position < len(self._tried):
                held = self._held[position] + GUESS_TRIES * before
                before = held / (self._tried[position] + GUESS_TRIES)
            found.append(before)
        return found

    def of_request(self) -> RequestAcceptance:
        """Return what is kept of a request's rounds."""
        return RequestAcceptance()


class RequestAcceptance:
    """One request's rounds lately, against what was to be expected of them."""

    def __init__(self) -> None:
        self._expected = self._held = 0.0
        self._num_first = FIRST_ROUNDS

    def observe(self, result: SequenceResult, expected: Sequence[float]) -> None:
        """Count a round; ``expected`` is what its method expected of each position before it."""
        if self._num_first:
            self._num_first -= 1
        else:
            self._count(result, expected)

    def _count(self, result: SequenceResult, expected: Sequence[float]) -> None:
        tried = min(result.num_accepted + 1, result.num_proposed)
        self._expected *= REQUEST_DECAY
        self._held *= REQUEST_DECAY
        self._expected += sum(expected[:tried])
        self._held += result.num_accepted

    def gains(self, expected: Sequence[float]) -> list[float]:
        """Return the tokens that each further position is expected to bring, falling."""
        ratio = (self._held + REQUEST_TRIES) / (self._expected + REQUEST_TRIES)
        gains, reached = [], 1.0
        for chance in expected:
            reached *= min(max(chance * ratio, LEAST), MOST)
            gains.append(reached)
        return gains
