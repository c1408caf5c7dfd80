"""What ranks of a model exchange, counted, against the formulas."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.parallel_costs import SplitShape, collectives
from quire.core.parallel_layout import ParallelLayout
from quire.kernels.registry import create_backend
from quire.models.shards.rank_model import Shard
from tests.distributed.thread_ranks import on_ranks


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["llama", "gpt2", "olmo2"])
def test_a_forward_exchanges_what_the_formulas_say(
    name, size, oracle, create_driver, random_prompts
):
    _, folder = oracle(name)
    cpu = create_backend("cpu", threads=1)
    (prompt,) = random_prompts([9])

    def body(group):
        driver = create_driver(folder, cpu, shard=Shard(group))
        driver.start(1)
        driver.step([np.array(prompt)])
        return driver.decoder.config, group.counts

    config, counts = on_ranks(size, body)[0]
    calls, num_bytes = {}, {}
    for one in collectives(SplitShape.of_config(config), ParallelLayout(size)):
        calls[one.name] = calls.get(one.name, 0) + one.calls
        num_bytes[one.name] = num_bytes.get(one.name, 0) + 9 * one.row_bytes
    assert (counts.calls, counts.num_bytes) == (calls, num_bytes)
