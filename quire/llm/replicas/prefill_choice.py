"""Whether a prompt is computed by an engine for prompts, or where its outputs are; pure policy.

Computed with the decodes of others, a prompt holds up each of them for as long as it takes. Apart,
it holds up none, but may wait for other prompts. The choice is what delays all of them least.
"""

from __future__ import annotations

#: Weight of the last measurement.
NEW_WEIGHT = 0.2


class PrefillChoice:
    """Compares the measured speeds of both ways; they count as equal before a measurement.

    Args:
        least_tokens: Prompts with fewer tokens to be computed are never sent away.
    """

    def __init__(self, least_tokens: int) -> None:
        self._least_tokens = least_tokens
        self._apart_seconds: float | None = None  # of a token
        self._mixed_seconds: float | None = None

    def is_long(self, num_tokens: int) -> bool:
        """Return whether a prompt may be computed apart, by the tokens to be computed of it."""
        return num_tokens >= self._least_tokens

    def is_apart(self, num_tokens: int, num_queued: int, num_others: int) -> bool:
        """Return whether to compute a long prompt apart.

        Args:
            num_tokens: Tokens to be computed of it.
            num_queued: Tokens that the engine for prompts has to compute before.
            num_others: Requests that the engine for outputs has.
        """
        apart = self._apart_seconds or self._mixed_seconds or 1.0
        mixed = self._mixed_seconds or apart
        return apart * (num_queued + num_tokens) < mixed * num_tokens * (1 + num_others)

    def computed(self, num_tokens: int, seconds: float, *, apart: bool) -> None:
        """Take note of how long tokens took, those before them included."""
        if not self.is_long(num_tokens):
            return  # the time of a short one is other things'
        own = seconds / num_tokens
        before = self._apart_seconds if apart else self._mixed_seconds
        mean = own if before is None else before + NEW_WEIGHT * (own - before)
        if apart:
            self._apart_seconds = mean
        else:
            self._mixed_seconds = mean
