"""The concurrent face: streams, cancellation, slow readers, failure, shutdown."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire import LLM, AsyncLLM, RequestOutputKind, SamplingParams, StructuredOutputs
from quire.core.engine_request import salt_keys
from quire.core.errors import EngineDeadError, PromptTooLongError, RankDeadError, RequestError
from quire.core.outputs import RequestOutput
from quire.llm.engine_client import EngineClient
from quire.llm.process import proxy
from quire.llm.process.proxy import EngineProxy
from quire.settings.config import EngineConfig
from tests.llm.asking import ask
from tests.llm.shared_engines import Growth, SharedEngines
from tests.sizes import sized

PLACES = ("thread", "process")
#: Of a request that does not get to its end while a busy machine stalls who reads it.
LONG_TOKENS = 2000
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
MEDIUM = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=LONG_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def load(folder: Path, device: str, small: dict[str, Any]) -> Callable[[str], EngineClient]:
    """Return a function that loads either client."""
    config = EngineConfig.from_keywords(model=str(folder), device=device, **small)
    return lambda place: AsyncLLM.from_config(config) if place == "thread" else EngineProxy(config)


@pytest.fixture(scope="module")
def shared(load: Callable[[str], EngineClient]) -> Iterator[SharedEngines[EngineClient]]:
    engines = SharedEngines(load)
    yield engines
    engines.end()


@pytest_asyncio.fixture(params=PLACES)
async def engine(
    request: pytest.FixtureRequest, shared: SharedEngines[EngineClient]
) -> AsyncIterator[EngineClient]:
    """Both clients: every test here is the protocol's."""
    async with shared.lease() as get:
        yield await get(place=request.param)


async def last(
    engine: EngineClient, prompt: str, request_id: str, params: SamplingParams = GREEDY
) -> RequestOutput:
    return [output async for output in ask(engine, prompt, params, request_id)][-1]


async def test_streamed_states_grow_to_what_llm_gives(engine: EngineClient, llm: LLM) -> None:
    states = [output async for output in ask(engine, "abc", GREEDY, "1")]
    expected = llm.generate("abc", GREEDY)[0].outputs[0]
    assert states[-1].outputs[0] == expected
    assert [state.finished for state in states] == [False] * (len(states) - 1) + [True]
    for state in states:
        count = len(state.outputs[0].token_ids)
        assert state.outputs[0].token_ids == expected.token_ids[:count]
        assert expected.text.startswith(state.outputs[0].text)


def num_compiled(engine: EngineClient) -> float:
    _, *counts = engine.stats().get("grammar_compilation_time_seconds", [0.0])
    return sum(counts)


async def test_structured_outputs_are_followed_and_refused(engine: EngineClient) -> None:
    before = num_compiled(engine)
    regex = StructuredOutputs(regex="[0-9]{3}-[a-z]{2}")
    params = SamplingParams(n=3, max_tokens=20, seed=1, structured_outputs=regex)
    output = await last(engine, "abc", "1", params)
    assert all(re.fullmatch("[0-9]{3}-[a-z]{2}", o.text) for o in output.outputs)
    refused = StructuredOutputs(json={"items": {"not": {"type": "null"}}})
    with pytest.raises(RequestError, match="#/items/not"):
        await last(engine, "abc", "2", SamplingParams(structured_outputs=refused))
    assert (await last(engine, "abc", "2", params)).outputs == output.outputs
    assert num_compiled(engine) == before + 1


@contextmanager
def held(engine: EngineClient) -> Iterator[None]:
    """Have it make no step inside the block: what comes there comes before the same one."""
    if isinstance(engine, EngineProxy):
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        yield
        os.kill(engine.pid, signal.SIGCONT)
    else:
        assert isinstance(engine, AsyncLLM)
        released = threading.Event()
        engine._send(released.wait)
        yield
        released.set()


async def test_gathered_requests_share_steps(engine: EngineClient) -> None:
    alone = [await last(engine, f"prompt {i}", f"alone {i}") for i in range(3)]
    grown = Growth(engine)
    with held(engine):
        tasks = [asyncio.create_task(last(engine, f"prompt {i}", str(i))) for i in range(3)]
        while engine.progress().pending < 3:
            await asyncio.sleep(0)
    together = await asyncio.gather(*tasks)
    assert [o.outputs for o in together] == [o.outputs for o in alone]
    # Alone they take 8 steps each.
    assert grown("num_steps") < 3 * 8


async def test_a_closed_stream_frees_its_blocks(engine: EngineClient) -> None:
    is_told = False
    while not is_told:  # a process tells it twenty times a second, and may be over by then
        stream = ask(engine, "abc", LONG, "1")
        async for _ in stream:
            is_told = engine.stats()["kv_cache_usage_perc"] > 0
            if is_told:
                break
        await stream.aclose()
    # The abort runs before the engine's next step; an answer to another request proves it did.
    await last(engine, "x", "2", SamplingParams(max_tokens=1))
    assert engine.stats()["num_requests_running"] == 0
    assert engine.stats()["kv_cache_usage_perc"] == 0


async def test_a_cancelled_task_frees_its_blocks(engine: EngineClient) -> None:
    task = asyncio.create_task(last(engine, "abc", "1", LONG))
    while engine.stats()["num_requests_running"] == 0:
        await asyncio.sleep(0)
        if task.done():  # before it was told
            task = asyncio.create_task(last(engine, "abc", "1", LONG))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await last(engine, "x", "2", SamplingParams(max_tokens=1))
    assert engine.stats()["kv_cache_usage_perc"] == 0


async def test_counters_are_read_while_requests_end(shared: SharedEngines[EngineClient]) -> None:
    """Reading them from another thread failed, and changed what the engine had begun to read."""
    before = sys.getswitchinterval()
    async with shared.lease() as get:
        engine = await get(place="thread")
        sys.setswitchinterval(1e-6)  # threads change places between most lines
        try:
            for i in range(20):
                tasks = [asyncio.create_task(last(engine, "abc", f"{i} {j}")) for j in range(8)]
                while not all(task.done() for task in tasks):
                    assert 0 <= engine.stats()["num_requests_running"] <= 8
                    await asyncio.sleep(0)
                await asyncio.gather(*tasks)
        finally:
            sys.setswitchinterval(before)


async def test_cancelled_while_waiting_for_a_place(engine: EngineClient) -> None:
    tasks: list[asyncio.Task[RequestOutput]] = []
    while engine.stats()["num_requests_waiting"] < 4:
        await asyncio.sleep(0)
        if all(task.done() for task in tasks):  # none yet, or before it was told
            asked = [last(engine, "abc", str(i), LONG) for i in range(12)]
            tasks = [asyncio.create_task(work) for work in asked]
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = {type(result) for result in results}
    assert asyncio.CancelledError in kinds <= {asyncio.CancelledError, RequestOutput}
    await last(engine, "x", "after", SamplingParams(max_tokens=1))
    stats = engine.stats()
    assert stats["num_requests_waiting"] == stats["kv_cache_usage_perc"] == 0


async def test_abort_ends_the_stream_with_a_reason(engine: EngineClient) -> None:
    for _ in range(20):  # until it comes in the midst, however busy the machine is
        states = []
        async for output in ask(engine, "abc", LONG, "1"):
            states.append(output)
            await engine.abort("1")
            assert engine.stats()["kv_cache_usage_perc"] == 0
        assert states[-1].finished
        if states[-1].outputs[0].finish_reason == "abort":
            break
    assert states[-1].outputs[0].finish_reason == "abort"
    await engine.abort("1")
    await engine.abort("never seen")


async def test_a_slow_reader_holds_up_no_other_and_misses_nothing(engine: EngineClient) -> None:
    expected = (await last(engine, "abc", "0", MEDIUM)).outputs
    slow = ask(engine, "abc", MEDIUM, "slow")
    first = await anext(slow)
    assert (await last(engine, "abc", "fast", MEDIUM)).outputs == expected
    states = [first, *[output async for output in slow]]
    assert states[-1].outputs == expected
    assert len(states) < 300  # what it did not read in time was overtaken


async def read_deltas(
    engine: EngineClient, params: SamplingParams, request_id: str, pause: float
) -> tuple[RequestOutput, int, int]:
    """Return what deltas add up to, the ids that came with them, and how many they were."""
    merged, num_ids, count = None, 0, 0
    async for delta in ask(engine, "abc", params, request_id):
        num_ids += sum(len(completion.token_ids) for completion in delta.outputs)
        count += 1
        if merged is None:
            merged = delta
        else:
            merged.merge(delta)
        await asyncio.sleep(pause)
    assert merged is not None and merged.finished
    return merged, num_ids, count


async def test_deltas_add_up_however_slowly_they_are_read(engine: EngineClient) -> None:
    """With several sequences, stop strings, log-probabilities and bytes that are no UTF-8."""
    for number, options in enumerate(
        ({}, {"n": 3, "stop": ["a", "b"], "logprobs": 2, "prompt_logprobs": 1})
    ):
        settings = {"seed": 4, "max_tokens": sized(100, 300), "ignore_eos": True, **options}
        expected = await last(engine, "abc", f"{number} whole", SamplingParams(**settings))
        deltas = SamplingParams(**settings, output_kind=RequestOutputKind.DELTA)
        for pause in (0.0, 0.01):
            for turn in range(20):
                name = f"{number} {pause} {turn}"
                merged, num_ids, count = await read_deltas(engine, deltas, name, pause)
                assert merged.outputs == expected.outputs
                assert merged.prompt_logprobs == expected.prompt_logprobs
                assert num_ids == sum(len(one.token_ids) for one in expected.outputs)
                if count > 1:  # a reader that the machine stalls gets all in one
                    break
            assert count > 1


async def test_final_only_is_one_output(engine: EngineClient) -> None:
    params = replace(MEDIUM, output_kind=RequestOutputKind.FINAL_ONLY)
    (output,) = [output async for output in ask(engine, "abc", params, "1")]
    assert output.finished and output.outputs == (await last(engine, "abc", "2", MEDIUM)).outputs


async def test_a_deadline_loses_no_delta(engine: EngineClient) -> None:
    """What was generated before the deadline is read before the ending, each token once."""
    params = replace(LONG, output_kind=RequestOutputKind.DELTA)
    for number in range(20):  # until it comes in the midst, however busy the machine is
        seconds = 0.1 * 2 ** (number % 5)
        stream = ask(engine, "abc", params, "1", deadline=time.monotonic() + seconds)
        deltas = [delta async for delta in stream]
        assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        ids = [i for delta in deltas for completion in delta.outputs for i in completion.token_ids]
        if 0 < len(ids) < LONG_TOKENS:
            break
    assert 0 < len(ids) < LONG_TOKENS
    expected = await last(engine, "abc", "2", replace(LONG, max_tokens=len(ids)))
    assert ids == expected.outputs[0].token_ids


async def test_refusals_touch_no_other_request(engine: EngineClient) -> None:
    expected = (await last(engine, "abc", "0", MEDIUM)).outputs
    stream = ask(engine, "abc", MEDIUM, "1")
    first = await anext(stream)
    with pytest.raises(RequestError, match="unique"):
        await last(engine, "abc", "1")
    with pytest.raises(PromptTooLongError, match="2048"):
        await last(engine, "x" * 100_000, "2")
    with pytest.raises(RequestError, match="at least one token"):
        await last(engine, "", "2")
    states = [first, *[output async for output in stream]]
    assert states[-1].outputs == expected


async def test_a_deadline_ends_what_runs_and_drops_what_waits(
    engine: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "DEADLINE_GRACE_SECONDS", 60.0)  # the engine ends it, however late
    grown, now = Growth(engine), time.monotonic()
    late = [output async for output in ask(engine, "abc", LONG, "late", deadline=now - 1)]
    assert [len(output.outputs[0].token_ids) for output in late] == [0]
    assert late[0].outputs[0].finish_reason == "timeout"
    assert grown("num_computed_tokens") == 0, "expired work never runs"
    stream = ask(engine, "abc", LONG, "1", deadline=time.monotonic() + 0.05)
    output = [output async for output in stream][-1]
    assert output.outputs[0].finish_reason == "timeout"
    expected = await last(engine, "abc", "2")
    assert engine.stats()["kv_cache_usage_perc"] == 0
    assert grown("request_success", finished_reason="timeout") == 2
    # One that is in time is as without.
    stream = ask(engine, "abc", GREEDY, "3", deadline=time.monotonic() + 600)
    assert [output async for output in stream][-1].outputs == expected.outputs


async def test_progress_counts_what_is_pending(engine: EngineClient) -> None:
    assert engine.progress().pending == 0
    assert engine.progress().stalled_seconds == engine.progress().oldest_queue_age == 0
    for _ in range(20):  # until none is over when it looks, however busy the machine is
        stream = ask(engine, "abc", LONG, "1")
        waiting = [asyncio.create_task(last(engine, "abc", f"w{i}", LONG)) for i in range(9)]
        await anext(stream)
        while (seen := engine.progress()).oldest_queue_age == 0:
            if any(task.done() for task in waiting):
                break
            await asyncio.sleep(0.001)  # the ninth waits for a place
        await stream.aclose()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert engine.progress().pending == 0
        if seen.pending == 10:
            break
    assert seen.pending == 10 and seen.oldest_queue_age > 0


async def test_salts_separate_the_prefix_cache(engine: EngineClient) -> None:
    prompt = "a prompt of more than sixteen tokens, so that a block is full"

    async def cached(request_id: str, salt: str | None) -> int:
        stream = ask(engine, prompt, GREEDY, request_id, extra_keys=salt_keys(salt))
        return [output async for output in stream][-1].num_cached_tokens

    assert await cached("1", None) == 0
    assert await cached("2", None) > 0
    assert await cached("3", "tenant") == 0
    assert await cached("4", "tenant") > 0


async def test_a_failed_step_ends_streams_and_health_checks_see_it(
    folder: Path, device: str, small: dict[str, Any]
) -> None:
    while True:
        engine = AsyncLLM(str(folder), device=device, **small)
        engine.check_health()
        stream = ask(engine, "abc", LONG, "1")
        await anext(stream)
        engine._engine.executor.shutdown()
        final = [output async for output in stream][-1]
        if final.outputs[0].finish_reason != "length":
            break
        await engine.shutdown()  # the machine stalled the test: it was over before
    assert final.outputs[0].finish_reason == "error"
    assert "submit after shutdown" in (final.error or "")
    with pytest.raises(EngineDeadError):
        engine.check_health()
    with pytest.raises(EngineDeadError):
        await last(engine, "abc", "2")
    await engine.shutdown()


async def test_a_rank_that_a_new_request_finds_lost_ends_those_under_way(
    folder: Path, device: str, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for ever: only a step told them."""

    def check() -> None:
        raise RankDeadError("rank 1 is gone.")

    while True:
        engine = AsyncLLM(str(folder), device=device, **small)
        stream = ask(engine, "abc", LONG, "1")
        await anext(stream)
        with held(engine):
            later = asyncio.create_task(last(engine, "abc", "2"))
            while not engine._coming or engine._commands.qsize() > 1:  # it is held, and has it next
                await asyncio.sleep(0)
            monkeypatch.setattr(engine._engine.executor, "check", check)
        with pytest.raises(EngineDeadError, match="rank 1 is gone"):
            await later
        final = [output async for output in stream][-1]
        if final.outputs[0].finish_reason != "length":
            break
        await engine.shutdown()  # it was over before
    assert final.outputs[0].finish_reason == "error"
    assert "rank 1 is gone" in (final.error or "")
    with pytest.raises(EngineDeadError):
        engine.check_health()
    await engine.shutdown()


@pytest.mark.parametrize("place", PLACES)
async def test_shutdown_ends_open_requests_and_refuses_new_ones(
    load: Callable[[str], EngineClient], place: str
) -> None:
    rest: list[RequestOutput] = []
    while not rest or rest[-1].outputs[0].finish_reason == "length":  # it was over before
        engine = load(place)
        stream = ask(engine, "abc", LONG, "1")
        await anext(stream)
        await engine.shutdown()
        rest = [output async for output in stream]
    assert rest[-1].outputs[0].finish_reason == "abort"
    with pytest.raises(EngineDeadError, match="shut down"):
        await last(engine, "abc", "2")
    await engine.shutdown()


async def test_bad_words_were_tokenized_on_the_loop(engine: EngineClient, monkeypatch) -> None:
    """Four megabytes of them, which a request may have, kept all others waiting for 6 s."""
    threads = set()
    encode = engine.tokenizer.encode

    def watched(text: str, *options: Any, **named: Any) -> list[int]:
        if "zq" in text:
            threads.add(threading.current_thread().name.partition("_")[0])
        return encode(text, *options, **named)

    monkeypatch.setattr(engine.tokenizer, "encode", watched)
    words = [f"zq{number}" for number in range(200)]
    output = await last(engine, "abc", "1", SamplingParams(max_tokens=4, bad_words=words))
    assert output.finished and threads == {"quire-texts"}
