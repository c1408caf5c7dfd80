"""Seconds of a step by the number of its rows, measured when an engine starts."""

from __future__ import annotations

import math
import time

from quire.kernels.backend import KVCache
from quire.kernels.batch.ragged_batch import rows_without_memory
from quire.models.model import Model

#: Numbers of rows whose steps are measured at start; repetitions, at least and at most; and seconds
#: after which no more than the least are made. Quick models need more for a steady minimum.
MEASURED_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 16, 24, 32)
MEASURED_TIMES, MOST_MEASURED_TIMES, MEASURED_SECONDS = 3, 30, 0.2


def measure_rows(model: Model, kv_cache: KVCache) -> dict[int, float]:
    """Return the seconds of a step by the number of its rows, each a sequence of one token."""
    upload = model.backend.upload
    batches = {count: upload(rows_without_memory(count)) for count in MEASURED_ROWS}
    seconds = dict.fromkeys(MEASURED_ROWS, math.inf)
    begin = time.perf_counter()
    for number in range(MOST_MEASURED_TIMES):
        if number >= MEASURED_TIMES and time.perf_counter() - begin > MEASURED_SECONDS:
            break
        for count, batch in batches.items():  # in turn: a disturbance meets all of them alike
            start = time.perf_counter()
            model.logits(model.forward(batch, kv_cache))
            seconds[count] = min(seconds[count], time.perf_counter() - start)
    return seconds
