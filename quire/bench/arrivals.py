"""Open-loop arrival times of requests; not how many may be in flight."""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times(count: int, rate: float, burstiness: float, random: random.Random) -> list[float]:
    """Draw the start times of ``count`` requests.

    The gaps are gamma-distributed with shape ``burstiness`` (1: exponential, a Poisson process) and
    mean ``1 / rate``. As in vLLM they are then scaled so that the last request starts at exactly
    ``(count - 1) / rate``: the offered rate is the one asked for, however few the requests.

    Args:
        count: Number of requests, at least 1.
        rate: Requests per second; infinite: all start at 0.
        burstiness: Shape of the gaps' distribution, above 0.

    Returns:
        Seconds from the start of the run, ascending, the first one 0.
    """
    if math.isinf(rate) or count == 1:
        return [0.0] * count
    gaps = [random.gammavariate(burstiness, 1.0) for _ in range(count - 1)]
    scale = (count - 1) / rate / sum(gaps)
    return list(accumulate((gap * scale for gap in gaps), initial=0.0))
