"""The reference of collectives against numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.distributed.thread_group import thread_groups


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sums_are_formed_in_the_order_of_ranks(size):
    rng = np.random.default_rng(size)
    parts = rng.standard_normal((size, 5, 7)).astype(np.float32)
    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(lambda g: g.all_reduce(parts[g.rank].copy()), thread_groups(size)))
    expected = parts[0].copy()
    for part in parts[1:]:
        expected += part
    for one in found:
        np.testing.assert_array_equal(one, expected)
