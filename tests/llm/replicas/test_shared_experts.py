"""Engines that have some experts each: the bits of one process, and what a lost engine costs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
from quire.core.request import EngineRequest
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.loading import load_replicas
from quire.llm.replicas.replicated_engine import ReplicatedEngine
from tests.draft_heads import expert_module_tensors, write_target
from tests.llm.replicas.conftest import load
from tests.llm.shared_engines import Growth, SharedEngines, sharing
from tests.preforked import children

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
DRAWN = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True, logprobs=2, seed=3, n=2)
LONG = SamplingParams(temperature=0.0, max_tokens=1500, ignore_eos=True)
#: Prompts that are computed in parts, next to other requests.
SETTINGS: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "threads": 1}
MEMORY = 64 << 20
FAMILIES = ["tiny-mixtral", "tiny-qwen2-moe", "tiny-deepseek"]
Create = Callable[..., Awaitable[ReplicatedEngine]]
Expect = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def shared(device: str) -> Iterator[SharedEngines[ReplicatedEngine]]:
    """Engines which share a model's experts, by its folder, their number and settings."""

    def start(folder: Path, count: int, **settings: Any) -> ReplicatedEngine:
        keywords = {"model": str(folder), "device": device, "memory": count * MEMORY, **SETTINGS}
        parts = {"data_parallel_size": count, "enable_expert_parallel": True}
        return load(EngineConfig.from_keywords(**keywords | parts | settings))

    yield from sharing(start)


@pytest_asyncio.fixture
async def create(shared: SharedEngines[ReplicatedEngine]) -> AsyncIterator[Create]:
    """Return a function that lends such engines."""
    async with shared.lease() as get:

        async def lend(folder: Path, count: int = 2, **settings: Any) -> ReplicatedEngine:
            engine: ReplicatedEngine = await get(folder=folder, count=count, **settings)
            return engine

        yield lend


@pytest.fixture(scope="module")
def expect(device: str) -> Callable[..., list[Any]]:
    """Return a function with the answers of one process, which are right; each computed once."""
    made: dict[str, list[Any]] = {}

    def answers_of(folder: Path, **settings: Any) -> list[Any]:
        key = repr((folder, settings))
        if key not in made:
            with LLM(str(folder), device=device, memory=MEMORY, **SETTINGS | settings) as llm:
                prompts = [prompt for prompt in PROMPTS for _ in range(2)]
                outputs = llm.generate(prompts, [GREEDY, DRAWN] * len(PROMPTS))
            made[key] = [
                [(tuple(o.token_ids), o.logprobs, o.finish_reason) for o in one.outputs]
                for one in outputs
            ]
        return made[key]

    return answers_of


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


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_bits_are_those_of_one_process(
    create: Create, checkpoint: Callable[..., Path], expect: Expect, family: str
) -> None:
    folder = checkpoint(family)
    engine = await create(folder)
    each = [Growth(one) for one in engine.engines]
    assert await answers(engine) == expect(folder)
    for stem in ("generation_tokens", "shared_expert_rows"):
        assert min(grown(stem) for grown in each) > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "int4", "threads": 2},
        {"speculative_config": {"method": "self", "quantization": "int4"}},
    ],
    ids=str,
)
async def test_four_engines_whatever_they_are_set_to(
    create: Create, checkpoint: Callable[..., Path], expect: Expect, settings: dict[str, Any]
) -> None:
    folder = checkpoint("tiny-mixtral")
    engine = await create(folder, 4, **settings)
    assert await answers(engine) == expect(folder, **settings)


async def test_a_module_that_has_experts_drafts(
    create: Create, checkpoint: Callable[..., Path], expect: Expect, tmp_path: Path
) -> None:
    plain = checkpoint("tiny-deepseek")
    folder = write_target(plain, tmp_path / "target", expert_module_tensors(plain))
    engine = await create(folder, speculative_config={"method": "mtp", "adaptive": False})
    assert await answers(engine) == expect(folder)
    drafts = 'spec_decode_num_drafts{method="mtp"}'
    assert all(one.stats()[drafts] != 0 for one in engine.engines)


async def test_an_idle_engine_multiplies_for_the_others(
    create: Create, checkpoint: Callable[..., Path]
) -> None:
    engine = await create(checkpoint("tiny-mixtral"))
    each = [Growth(one) for one in engine.engines]
    found = await answer(engine, PROMPTS[1], GREEDY, "alone")
    assert len(found[0][0]) == 12
    (busy, idle) = sorted(each, key=lambda grown: -grown("generation_tokens"))
    assert idle("generation_tokens") == 0
    assert busy("shared_expert_rows", way="asked") > 40


async def test_aborts_in_the_midst_leave_the_others_their_bits(
    create: Create, checkpoint: Callable[..., Path], expect: Expect
) -> None:
    folder = checkpoint("tiny-mixtral")
    engine = await create(folder)
    endings = ["length"]
    while "length" in endings:  # at once, unless the machine stalled the test
        long = [
            asyncio.create_task(answer(engine, prompt, LONG, f"long-{number}"))
            for number, prompt in enumerate(PROMPTS)
        ]
        asked = asyncio.create_task(answers(engine))
        await asyncio.sleep(0.05)
        for number in range(len(PROMPTS)):
            await engine.abort(f"long-{number}")
        assert await asked == expect(folder)
        endings = [one[0][2] for one in await asyncio.gather(*long)]
    assert endings == ["abort"] * len(PROMPTS)


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
async def test_a_killed_engine_is_named_and_all_serve_again(
    create: Create, checkpoint: Callable[..., Path], expect: Expect, is_busy: bool
) -> None:
    folder = checkpoint("tiny-mixtral")
    engine = await create(folder)
    told: list[str] = []
    gone = "[experts] engine 1, which has experts 2 to 3, is gone"
    while not any(gone in one for one in told):  # at once, unless the machine stalled the test
        each = [Growth(one) for one in engine.engines]
        works = [
            asyncio.create_task(answer(engine, PROMPTS[number], LONG, f"r{number}"))
            for number in range(4 if is_busy else 0)
        ]
        while not all(grown("generation_tokens") > 4 for grown in each):
            if all(work.done() for work in works):
                break
            await asyncio.sleep(0.01)
        pids = [one.pid for one in engine.engines]
        assert pids[1] is not None
        os.kill(pids[1], signal.SIGKILL)
        endings = await asyncio.gather(*works)
        told = [str(one) for one in endings if isinstance(one, Exception)]
        while any(one.pid is None or one.pid in pids for one in engine.engines):
            await asyncio.sleep(0.05)
        if not is_busy:
            break
    # More than once where the other, still about to go, was met again.
    assert all(grown("engine_restarts") >= 1 for grown in each)
    found = await answers(engine)
    while any(isinstance(one, Exception) for one in found):
        await asyncio.sleep(0.05)
        found = await answers(engine)
    assert found == expect(folder)
    assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids)


async def test_what_cannot_be_shared_is_refused(
    create: Create, checkpoint: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match="must have a mixture of experts; got LlamaForCausalLM"):
        await create(checkpoint("tiny-llama"))
    for refused in ({"pipeline_parallel_size": 2}, {"enable_eplb": True}):
        with pytest.raises(ConfigError, match="--pipeline-parallel-size|--enable-eplb"):
            await create(checkpoint("tiny-mixtral"), **refused)


async def test_an_engine_that_cannot_load_has_the_others_end(
    create: Create, checkpoint: Callable[..., Path]
) -> None:
    """They wait for it, with their weights in memory."""
    config = EngineConfig.from_keywords(
        model=str(checkpoint("tiny-mixtral")),
        data_parallel_size=2,
        enable_expert_parallel=True,
        memory=2 * MEMORY,
        **SETTINGS,
    )

    def load_one(number: int, own: EngineConfig, loading: Loading) -> EngineProxy:
        if number == 1:
            raise ModelLoadError("[test] it cannot.")
        return EngineProxy(own, loading=loading)

    before = set(children(psutil.Process()))
    with pytest.raises(ModelLoadError, match="it cannot"):
        await asyncio.to_thread(load_replicas, config, read_machine(), Loading(), load_one)
    left = set(children(psutil.Process())) - before
    assert not any("engine_loop" in word for one in left for word in (one.name(), *one.cmdline()))
