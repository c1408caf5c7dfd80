"""The size of a long prompt's parts, in tokens, while short prompts arrive.

A request that arrives during a step waits for its end. Tokens do not measure that: deep in a prompt
one takes many times as long as at its beginning. So parts are made so small that steps with one are
expected to take a few times as long as those without. A part may be dropped in the midst of its
step when a request arrives, but not for ever: the one that is computed to its end is smaller.
What a step costs in any case slows the long prompt; with no other requests its parts are large.
While no request decodes, a part that may be dropped delays no other. It costs the long prompt what
is lost of it, half a part for each request that arrives, and a step's own cost for each part. The
sum is least where a part takes sqrt(2 * a step's own cost * time between two requests).
"""

from __future__ import annotations

import math

from quire.planner.step_times import StepTimes

#: A step with a part of a long prompt may take this many times as long as those without.
STEP_FACTOR = 3.1
#: Seconds for which another request is expected after one has arrived while others were there.
COMPANY_SECONDS = 10.0
#: The same as STEP_FACTOR for a part that is not dropped when a request arrives.
SURE_FACTOR = 1.5
#: Fewest tokens of a part.
LEAST_TOKENS = 16
#: Weight of the newest in the mean time between two requests.
INTERVAL_WEIGHT = 0.1


class ChunkSize:
    """Chooses the size of parts by the time that steps take.

    Args:
        times: The seconds that steps are expected to take.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._seen: set[bool] = set()  # whether steps without a part have ended, and with one
        self._company_until = 0.0
        self._interval = COMPANY_SECONDS  # mean time between two requests
        #: Whether the next part is computed to its end, whatever requests arrive.
        self.is_sure = False

    def joined(self, now: float) -> None:
        """A request has arrived while others were there."""
        since = COMPANY_SECONDS - max(self._company_until - now, 0.0)
        self._interval += INTERVAL_WEIGHT * (since - self._interval)
        self._company_until = now + COMPANY_SECONDS

    def step_ended(self, has_part: bool) -> None:
        """A step has ended; ``has_part``: with a part of a prompt that is not at its end yet."""
        self._seen.add(has_part)

    def tokens(self, now: float, num_decodes: int, most: int) -> int:
        """Return the number of tokens of the next part, at most.

        Args:
            now: Seconds, on the clock of :meth:`joined`.
            num_decodes: Number of requests that decode in the next step.
            most: Number of tokens when nothing else is known, and never more.
        """
        if len(self._seen) < 2 or now >= self._company_until:
            return most
        short = self._times.seconds(max(num_decodes, 1))
        seconds = (SURE_FACTOR if self.is_sure else STEP_FACTOR) * short
        if not num_decodes and not self.is_sure:
            seconds = max(seconds, math.sqrt(2 * short * self._interval))
        fitting = self._times.prompt_tokens(seconds, max(num_decodes, 1))
        return max(min(fitting, most), min(LEAST_TOKENS, most))
