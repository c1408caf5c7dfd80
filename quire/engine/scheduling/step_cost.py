"""The time that a step takes, predicted from the work in it; learned from steps.

A step takes a time of its own, one for each sequence that decodes, and one for each token of a
prompt. All three are corrected after each step by a part of what the sum missed, each in
proportion to its share of the step (normalized least mean squares, Widrow and Hoff 1960). So the
sum is right for steps like the last ones whatever the parts are, it follows contexts that get
longer and neighbours that come, and steps of other kinds tell the parts from each other.
"""

from __future__ import annotations

#: Part of what a step's prediction missed that is corrected by it.
CORRECTED = 0.5
#: A step counts as at most this many times longer or shorter than predicted: something else is to
#: blame for the rest.
MOST_MISSED = 2.0
#: A step's own time has the weight of this many tokens in a correction.
OWN_TOKENS = 8.0
#: The least that a prompt token is thought to take, of the mean time of a step's tokens.
LEAST_SHARE = 0.05


class StepCost:
    """Predicts the seconds of a step."""

    def __init__(self) -> None:
        self._own = self._decode = self._prompt = 0.0
        self._mean = 0.0  # seconds per token of any kind in the last step

    @property
    def is_known(self) -> bool:
        """Whether a step has ended."""
        return self._mean > 0

    def observe(self, seconds: float, num_decodes: int, num_prompt_tokens: int) -> None:
        """A step has ended that had at least one of them."""
        num_tokens = num_decodes + num_prompt_tokens
        if seconds <= 0 or num_tokens == 0:
            return
        self._mean = seconds / num_tokens
        predicted = self.seconds(num_decodes, num_prompt_tokens)
        if predicted <= 0:
            self._own, self._decode, self._prompt = 0.0, self._mean, self._mean
            return
        seconds = min(max(seconds, predicted / MOST_MISSED), predicted * MOST_MISSED)
        square = OWN_TOKENS**2 + num_decodes**2 + num_prompt_tokens**2
        step = CORRECTED * (seconds - predicted) / square
        self._own = max(self._own + step * OWN_TOKENS**2, 0.0)
        self._decode = max(self._decode + step * num_decodes, 0.0)
        self._prompt = max(self._prompt + step * num_prompt_tokens, 0.0)

    def seconds(self, num_decodes: int, num_prompt_tokens: int) -> float:
        """Return the seconds that a step takes; 0.0 before the first."""
        return self._own + self._decode * num_decodes + self._prompt * num_prompt_tokens

    @property
    def prompt_token_seconds(self) -> float:
        """Seconds that one prompt token adds to a step; 0.0 before the first step."""
        return max(self._prompt, LEAST_SHARE * self._mean)

    def prompt_tokens(self, seconds: float, num_decodes: int) -> int:
        """Return how many tokens of prompts fit into a step of that length; may be negative."""
        return int((seconds - self.seconds(num_decodes, 0)) / self.prompt_token_seconds)
