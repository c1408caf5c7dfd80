"""Engines that have some experts each: the bits of one process, and what a lost engine costs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio

from quire import LLM, SamplingParams
from quire.core.config import EngineConfig
from quire.core.errors import CapacityError, ConfigError, EngineDeadError, ModelLoadError
from quire.core.loading import Loading
from quire.core.machine import read_machine
from quire.core.metrics import add_up
from quire.core.request import EngineRequest
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.loading import load_replicas
from quire.llm.replicas.replicated_engine import ReplicatedEngine

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
DRAWN = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True, logprobs=2, seed=3, n=2)
LONG = SamplingParams(temperature=0.0, max_tokens=1500, ignore_eos=True)
#: Prompts that are computed in parts, next to other requests.
SETTINGS: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "threads": 1}
MEMORY = 64 << 20
FAMILIES = ["tiny-mixtral", "tiny-qwen2-moe", "tiny-deepseek"]
Create = Callable[..., ReplicatedEngine]


@pytest_asyncio.fixture
async def create(device: str) -> AsyncIterator[Create]:
    """Return a function that starts engines which share a model's experts."""
    made: list[ReplicatedEngine] = []

    def start(folder: Path, count: int = 2, **settings: Any) -> ReplicatedEngine:
        keywords = {"model": str(folder), "device": device, "memory": count * MEMORY, **SETTINGS}
        shared = {"data_parallel_size": count, "enable_expert_parallel": True}
        config = EngineConfig.from_keywords(**keywords, **shared, **settings)
        made.append(
            load_replicas(
                config,
                read_machine(),
                Loading(),
                lambda number, own, loading: EngineProxy(own, loading=loading),
            )
        )
        return made[-1]

    yield start
    pids = [engine.pid for one in made for engine in one.engines]
    for engine in made:
        await engine.shutdown()
    assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids)


def create_prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(0, 256, length).tolist() for length in lengths]


PROMPTS = create_prompts(5, 40, 130, 17, 33, 70)


async def answer(
    engine: ReplicatedEngine, prompt: list[int], params: SamplingParams, name: str
) -> Any:
    """Return the sequences' ids and log-probabilities, or the error that ended the request."""
    try:
        request = EngineRequest(name, prompt, params)
        (*_, output) = [output async for output in engine.generate(request)]
    except (EngineDeadError, CapacityError) as error:
        return error
    return [(tuple(o.token_ids), o.logprobs, o.finish_reason) for o in output.outputs]


async def answers(engine: ReplicatedEngine) -> list[Any]:
    """Return what is answered when all is asked at once."""
    return await asyncio.gather(
        *(
            answer(engine, prompt, params, f"{number}-{params.n}")
            for number, prompt in enumerate(PROMPTS)
            for params in (GREEDY, DRAWN)
        )
    )


def expect(folder: Path, device: str, **settings: Any) -> list[Any]:
    """Return the answers of one process, which are right."""
    with LLM(str(folder), device=device, memory=MEMORY, **SETTINGS, **settings) as llm:
        prompts = [prompt for prompt in PROMPTS for _ in range(2)]
        outputs = llm.generate(prompts, [GREEDY, DRAWN] * len(PROMPTS))
    return [
        [(tuple(o.token_ids), o.logprobs, o.finish_reason) for o in one.outputs] for one in outputs
    ]


def rows(engine: ReplicatedEngine, way: str) -> list[float]:
    """Return how many rows went out to each engine's siblings, or came from these."""
    return [one.stats()[f'shared_expert_rows{{way="{way}"}}'] for one in engine.engines]


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_bits_are_those_of_one_process(
    create: Create, checkpoint: Callable[..., Path], device: str, family: str
) -> None:
    folder = checkpoint(family)
    engine = create(folder)
    assert await answers(engine) == expect(folder, device)
    await asyncio.sleep(0.3)  # counters come with steps, and now and then
    each = [add_up(one.stats(), "generation_tokens") for one in engine.engines]
    assert min(each) > 0 and min(rows(engine, "asked")) > 0
