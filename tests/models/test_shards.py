"""A model over several ranks, as threads of one process: the bits of one rank alone."""

from __future__ import annotations

import numpy as np
import pytest

from quire.kernels.registry import create_backend
from quire.models.shards.rank_model import Shard
from tests.distributed.thread_ranks import on_ranks
from tests.models.test_decoder import MODELS

DENSE = [name for name in MODELS]


@pytest.fixture(scope="module")
def cpu():
    return create_backend("cpu", threads=1)


def run(driver, prompts, num_tokens=6):
    """Return logits of all rows of two steps, and greedy tokens after prompts."""
    first, second = (np.array(prompt) for prompt in prompts)
    driver.start(2)
    found = [driver.step([first[:7], second]), driver.step([first[7:], second[:1]], wanted="last")]
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", DENSE)
def test_logits_have_the_bits_of_one_rank(name, size, oracle, cpu, create_driver, random_prompts):
    _, folder = oracle(name)
    prompts = random_prompts([20, 9])
    want = run(create_driver(folder, cpu), prompts)

    def body(group):
        return run(create_driver(folder, cpu, shard=Shard(group)), prompts)

    heads = create_driver(folder, cpu).decoder.config.num_heads
    if size > heads:
        pytest.skip("heads")
    got = on_ranks(size, body)[0]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
