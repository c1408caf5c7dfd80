"""What ranks of a model exchange, counted, against the formulas."""

from __future__ import annotations

import numpy as np
import pytest

from quire.kernels.registry import create_backend
from quire.layers.parallel.expert_placement import ExpertDivision
from quire.models.shards.rank_model import Shard
from quire.planner.parallel_costs import SplitShape, collectives
from quire.settings.parallel_layout import ParallelLayout
from tests.distributed.thread_ranks import on_ranks


@pytest.mark.parametrize("num_tokens", [1, 9, 17])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma", "olmo2", "mixtral", "qwen2-moe"])
def test_a_forward_exchanges_what_the_formulas_say(
    name, size, whole, exact, num_tokens, oracle, create_driver, random_prompts
):
    _, folder = oracle(name)
    cpu = create_backend("cpu", threads=1)
    (prompt,) = random_prompts([num_tokens])

    def body(group):
        driver = create_driver(folder, cpu, shard=Shard(group, exact, ExpertDivision(whole)))
        driver.start(1)
        driver.step([np.array(prompt)])
        return driver.decoder.config, group.counts

    ranks = on_ranks(size, body)
    config, counts = ranks[0]
    calls, num_bytes = {}, {}
    shape, layout = SplitShape.of_config(config), ParallelLayout(size)
    for one in collectives(shape, layout, exact=exact, num_tokens=num_tokens, whole_experts=whole):
        calls[one.name] = calls.get(one.name, 0) + one.calls
        num_bytes[one.name] = num_bytes.get(one.name, 0) + num_tokens * one.row_bytes
    if "all_to_all" in num_bytes:
        counts.num_bytes["all_to_all"] = sum(own.num_bytes["all_to_all"] for _, own in ranks)
    assert (counts.calls, counts.num_bytes) == (calls, num_bytes)
