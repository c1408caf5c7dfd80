"""The size of a long prompt's parts, in tokens, while short prompts arrive.

A request that arrives during a step waits for its end. Tokens do not measure that: deep in a prompt
one takes many times as long as at its beginning. So the time is measured that steps without a part
of a long prompt take, and parts are made so small that steps with one take a few times as long. A
part may be dropped in the midst of its step when a request arrives, but not for ever: the one that
is computed to its end is smaller.
What a step costs in any case slows the long prompt; with no other requests its parts are large.
While no request decodes, a part that may be dropped delays no other. It costs the long prompt what
is lost of it, half a part for each request that arrives, and a step's own cost for each part. The
sum is least where a part takes sqrt(2 * a step's own cost * time between two requests).
"""

from __future__ import annotations

import math

#: A step with a part of a long prompt may take this many times as long as those without.
STEP_FACTOR = 3.1
#: Seconds for which another request is expected after one has arrived while others were there.
COMPANY_SECONDS = 10.0
#: The same as STEP_FACTOR for a part that is not dropped when a request arrives.
SURE_FACTOR = 1.5
#: Fewest tokens of a part.
LEAST_TOKENS = 16
#: Weight of the newest step in what is known of those without a part, and with one.
SHORT_WEIGHT, LONG_WEIGHT = 0.1, 0.5
#: Weight of the newest in the mean time between two requests.
INTERVAL_WEIGHT = 0.1


class ChunkSize:
    """Chooses the size of parts by the time that steps take."""

    def __init__(self) -> None:
        self._short_seconds = 0.0
        self._token_seconds = 0.0  # of prompt tokens, in steps with a part of a long prompt
        self._company_until = 0.0
        self._interval = COMPANY_SECONDS  # mean time between two requests
        #: Whether the next part is computed to its end, whatever requests arrive.
        self.is_sure = False

    def joined(self, now: float) -> None:
        """A request has arrived while others were there."""
        since = COMPANY_SECONDS - max(self._company_until - now, 0.0)
        self._interval = _mean(self._interval, since, INTERVAL_WEIGHT)
        self._company_until = now + COMPANY_SECONDS

    def observe(self, seconds: float, num_prompt_tokens: int, has_part: bool) -> None:
        """A step has ended.

        Args:
            seconds: Seconds that the step took.
            num_prompt_tokens: Number of prompt tokens that it computed.
            has_part: Whether some of them were a part of a prompt that is not at its end yet.
        """
        if not has_part:
            self._short_seconds = _mean(self._short_seconds, seconds, SHORT_WEIGHT)
        elif num_prompt_tokens >= LEAST_TOKENS:
            token_seconds = seconds / num_prompt_tokens
            self._token_seconds = _mean(self._token_seconds, token_seconds, LONG_WEIGHT)

    def tokens(self, now: float, num_decodes: int, most: int) -> int:
        """Return the number of tokens of the next part, at most.

        Args:
            now: Seconds, on the clock of :meth:`joined`.
            num_decodes: Number of requests that decode in the next step.
            most: Number of tokens when nothing else is known, and never more.
        """
        seconds = (SURE_FACTOR if self.is_sure else STEP_FACTOR) * self._short_seconds
        if not num_decodes and not self.is_sure:
            seconds = max(seconds, math.sqrt(2 * self._short_seconds * self._interval))
        is_known = self._short_seconds > 0 and self._token_seconds > 0
        if not is_known or now >= self._company_until:
            return most
        return max(min(int(seconds / self._token_seconds), most), min(LEAST_TOKENS, most))


def _mean(mean: float, newest: float, weight: float) -> float:
    return newest if mean == 0.0 else mean + weight * (newest - mean)
