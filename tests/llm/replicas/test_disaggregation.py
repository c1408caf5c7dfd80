"""Prompts computed by one engine for another one: equal tokens, and losses that cost time alone."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire import LLM, SamplingParams
from quire.core.engine_request import EngineRequest
from quire.core.errors import CapacityError, EngineDeadError
from quire.core.metrics import add_up
from quire.llm.replicas.prefill_choice import PrefillChoice
from quire.llm.replicas.replicated_engine import ReplicatedEngine
from quire.llm.replicas.roles import Roles, Transport
from quire.settings.config import EngineConfig
from tests.llm.replicas.conftest import PATIENT, load
from tests.llm.shared_engines import Growth, SharedEngines, sharing
from tests.ports import free_ports
from tests.sizes import sized

#: Tokens of streams that run while prompts are computed apart, which tests count.
STREAM_TOKENS = sized(300, 1500)
LONG_STREAM = SamplingParams(temperature=0.0, max_tokens=STREAM_TOKENS, ignore_eos=True)
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True)


Create = Callable[..., Awaitable[ReplicatedEngine]]


class Always(PrefillChoice):
    """Long prompts are computed apart, however long that takes on a busy machine."""

    def is_apart(self, num_tokens: int, num_queued: int, num_others: int) -> bool:
        return True


def prompt(seed: int, num_tokens: int = 500) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(250) for _ in range(num_tokens)]


@pytest.fixture(scope="module")
def shared(
    folder: Path, device: str, small: dict[str, Any]
) -> Iterator[SharedEngines[ReplicatedEngine]]:
    """Engines for outputs and for prompts, by their number and settings."""

    def start(
        num_prefill: int, num_decode: int, transport: Transport, **settings: Any
    ) -> ReplicatedEngine:
        if transport == "tcp":
            settings["master_port"] = free_ports(num_decode) - 1
        keywords = {"model": str(folder), "device": device, **small, **settings}
        config = EngineConfig.from_keywords(**keywords, data_parallel_size=num_decode)
        return load(config, Roles(num_prefill, 64, transport=transport))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATIENT, prepend=os.pathsep)
        yield from sharing(start)


@pytest_asyncio.fixture
async def create(shared: SharedEngines[ReplicatedEngine]) -> AsyncIterator[Create]:
    """Return a function that lends such engines; long prompts are computed apart."""
    async with shared.lease() as get:

        async def lend(
            num_prefill: int = 1,
            num_decode: int = 1,
            always: bool = True,
            transport: Transport = "auto",
            **settings: Any,
        ) -> ReplicatedEngine:
            numbers = {"num_prefill": num_prefill, "num_decode": num_decode}
            engine: ReplicatedEngine = await get(transport=transport, **numbers, **settings)
            assert engine._prefill is not None
            engine._prefill.choice = (Always if always else PrefillChoice)(64)
            return engine

        yield lend


@pytest.fixture(scope="module")
def expected(folder: Path, device: str, small: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """Return a function with the outputs of one engine to ``ASKED``, each computed once."""
    engines: dict[str, LLM] = {}
    made: dict[Any, Any] = {}

    def outputs(tokens: list[int], kv_cache_dtype: str = "auto") -> Any:
        key = kv_cache_dtype, *tokens
        if key not in made:
            if kv_cache_dtype not in engines:
                settings = {"device": device, **small, "kv_cache_dtype": kv_cache_dtype}
                engines[kv_cache_dtype] = LLM(str(folder), **settings)
            request = {"prompt_token_ids": tokens}
            made[key] = engines[kv_cache_dtype].generate(request, ASKED)[0].outputs
        return made[key]

    yield outputs
    for llm in engines.values():
        llm.shutdown()


async def answer(
    engine: ReplicatedEngine, name: str, tokens: list[int], params: SamplingParams = ASKED
) -> Any:
    """Return the last output, or the name of the error that ended it."""
    try:
        (*_, output) = [o async for o in engine.generate(EngineRequest(name, tokens, params))]
    except (EngineDeadError, CapacityError) as error:
        return type(error).__name__
    return output


async def start_streams(engine: ReplicatedEngine, count: int = 3) -> list[asyncio.Task[Any]]:
    """Start requests that generate tokens, so that prompts hold them up."""
    grown = Growth(engine)
    streams = [
        asyncio.create_task(answer(engine, f"stream {i}", prompt(90 + i, 20), LONG_STREAM))
        for i in range(count)
    ]
    while grown("generation_tokens") < count:
        await asyncio.sleep(0.01)
    return streams


def apart(grown: Growth) -> float:
    return grown("prefill_requests", place="apart")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_cache_dtype": "int8"},
        {"num_decode": 2},
        {"transport": "tcp"},
        {"transport": "tcp", "num_decode": 2, "max_num_batched_tokens": 64},
    ],
)
async def test_tokens_are_those_of_one_engine(
    create: Create, expected: Callable[..., Any], settings: Any
) -> None:
    engine = await create(**settings)
    grown = Growth(engine)
    own = {key: settings[key] for key in settings.keys() & {"kv_cache_dtype"}}
    streams = await start_streams(engine, 6)
    tokens = [prompt(seed) for seed in range(4)]
    tokens[3] = tokens[2][:300] + prompt(9, 200)
    for number, each in enumerate(tokens):
        output = await answer(engine, f"r{number}", each)
        assert output.outputs == expected(each, **own)
        if "transport" not in settings:  # by TCP some may come late on a busy machine
            assert output.num_cached_tokens == (len(each) - 1) // 16 * 16
    assert apart(grown) == 4
    for stream, output in zip(streams, await asyncio.gather(*streams), strict=True):
        assert len(output.outputs[0].token_ids) == STREAM_TOKENS, stream
    loaded = partial(grown, "prompt_tokens_by_source", source="external_kv_transfer")
    if "transport" not in settings:
        assert loaded() == 16 * (4 * 31 - 18), "all but a prefix that was there"
    seed = 10
    while not (grown("kv_offload_store_bytes", tier="transfer") and loaded()):
        # An engine that once was slow to answer is left alone for up to 30 s.
        await answer(engine, f"more {seed}", prompt(seed))
        seed += 1


@pytest.mark.parametrize("transport", ["shared", "tcp"])
async def test_blocks_that_the_other_side_has_are_not_sent(
    create: Create, transport: Transport
) -> None:
    engine = await create(transport=transport)
    grown = Growth(engine)
    streams = await start_streams(engine)
    tokens = prompt(1)
    await answer(engine, "mixed", tokens[:304], SamplingParams(max_tokens=1, prompt_logprobs=1))
    assert apart(grown) == 0, "its prompt's logits are needed, too"
    output = await answer(engine, "apart", tokens)
    assert apart(grown) == 1 and (output.num_cached_tokens == 496 or transport == "tcp")
    # Computed once, sent from the cache when the other side has lost it.
    await engine.engines[0].reset_prefix_cache()
    engine._dispatcher.forget_prefixes()
    before = add_up(engine.engines[1].stats(), "num_computed_tokens")
    again = await answer(engine, "again", tokens)
    assert apart(grown) == 2 and again.outputs == output.outputs
    assert add_up(engine.engines[1].stats(), "num_computed_tokens") - before <= 16
    await asyncio.gather(*streams)
    loaded = grown("prompt_tokens_by_source", source="external_kv_transfer")
    assert loaded == 16 * (31 - 19 + 31) or transport == "tcp", "19 of 31 were there, then none"


async def test_a_prompt_that_holds_up_no_request_stays(create: Create) -> None:
    engine = await create(always=False)
    grown = Growth(engine)
    await answer(engine, "alone", prompt(1))
    assert apart(grown) == 0


@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_lost_engine_costs_no_answer(
    create: Create,
    expected: Callable[..., Any],
    victim: int,
    transport: Transport,
) -> None:
    """Two for outputs, one for prompts: of the former one is killed, or the latter."""
    engine = await create(1, 2, transport=transport, max_num_batched_tokens=64)
    grown = Growth(engine)
    streams = await start_streams(engine, 4)
    works = {
        seed: asyncio.create_task(answer(engine, f"r{seed}", prompt(seed))) for seed in range(6)
    }
    while not apart(grown):
        await asyncio.sleep(0.001)
    lost = engine.engines[0 if victim == 0 else 2]
    pid = lost.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for seed, work in works.items():
        output = await work
        if output == "EngineDeadError":
            assert victim == 0, "nothing of an answer is lost with a prompt"
            continue
        assert output.outputs == expected(prompt(seed))
    engine.check_health()
    await asyncio.gather(*streams)
    while lost.pid in (None, pid):
        await asyncio.sleep(0.05)
    # It has its role again.
    streams = await start_streams(engine, 4)
    before = apart(grown)
    for seed in range(20, 24):
        output = await answer(engine, f"r{seed}", prompt(seed))
        assert output.outputs == expected(prompt(seed))
    assert apart(grown) > before
    await asyncio.gather(*streams)


async def test_an_engine_that_stops_holds_up_no_other(
    create: Create, expected: Callable[..., Any]
) -> None:
    engine = await create(1, 2, transport="tcp", max_num_batched_tokens=64)
    grown = Growth(engine)
    streams = await start_streams(engine, 4)
    works = {
        seed: asyncio.create_task(answer(engine, f"r{seed}", prompt(seed))) for seed in range(8)
    }
    while not apart(grown):
        await asyncio.sleep(0.001)
    stopped = engine.engines[0].pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    try:
        num_done = sum(work.done() for work in works.values())
        # Too many may be done if the machine stalled this process.
        for seed in range(8, 12):
            works[seed] = asyncio.create_task(answer(engine, f"r{seed}", prompt(seed)))
        while sum(work.done() for work in works.values()) < num_done + 2:
            await asyncio.sleep(0.01)
    finally:
        os.kill(stopped, signal.SIGCONT)
    for seed, work in works.items():
        assert (await work).outputs == expected(prompt(seed))
    await asyncio.gather(*streams)


def test_what_delays_all_least_is_chosen() -> None:
    choice = PrefillChoice(100)
    assert not choice.is_long(99) and choice.is_long(100)
    assert not choice.is_apart(1000, 0, 0), "no request is held up"
    assert choice.is_apart(1000, 0, 1)
    assert not choice.is_apart(1000, 5000, 2), "others wait there"
    choice.computed(1000, 1.0, apart=False)
    choice.computed(1000, 4.0, apart=True)
    assert not choice.is_apart(1000, 0, 2), "it is slower"
    assert choice.is_apart(1000, 0, 4)
    choice.computed(10, 100.0, apart=True)
    assert choice.is_apart(1000, 0, 4)
